"""How processes that are not our children ended: their wait status, through a pidfd (Linux)."""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Collection, Mapping


def status_of(descriptor: int) -> int | None:
    """The wait status of a pidfd's process.

    None while it lives, and on kernels before 6.15 once it has been waited for. A process that is
    just about to exit has one.
    """
    status = _before_it_is_reaped(descriptor)
    return _after_it_was_reaped(descriptor) if status is None else status


def first_to_go(
    ended: Collection[int], statuses: Mapping[int, int | None]
) -> dict[int, int | None]:
    """Ranks that the others followed, with their wait statuses; pure.

    Parameters
    ----------
    ended
        Ranks whose processes have come to their end.
    statuses
        Of ranks that have, or are about to; None where nothing is known.
    """
    known = {rank: status for rank, status in statuses.items() if status is not None}
    # A rank that exits makes mpiexec kill the others, and may come to its end after them.
    by_itself = {rank for rank, status in known.items() if os.WIFEXITED(status)}
    return {rank: statuses[rank] for rank in sorted(by_itself or ended)}


def _before_it_is_reaped(descriptor: int) -> int | None:
    try:
        with open(f"/proc/self/fdinfo/{descriptor}") as file:
            pid = next(int(line.split()[1]) for line in file if line.startswith("Pid:"))
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        flags, status = int(fields[6]), int(fields[49])  # see proc(5)
    except (OSError, StopIteration, ValueError, IndexError):
        return None  # it has been waited for
    return status if flags & _PF_EXITING else None


def _after_it_was_reaped(descriptor: int) -> int | None:
    info = bytearray(struct.pack("Q", _INFO_EXIT).ljust(_INFO_BYTES, b"\0"))
    try:
        fcntl.ioctl(descriptor, _GET_INFO, info)
    except OSError:
        return None  # an older kernel
    (mask,) = struct.unpack_from("Q", info)
    return struct.unpack_from("i", info, _EXIT_CODE)[0] if mask & _INFO_EXIT else None


_PF_EXITING = 0x4  # include/linux/sched.h
# struct pidfd_info of include/uapi/linux/pidfd.h, in its first size.
_INFO_BYTES = 64
_EXIT_CODE = 60
_INFO_EXIT = 1 << 3
_GET_INFO = 3 << 30 | _INFO_BYTES << 16 | 0xFF << 8 | 11  # _IOWR(0xFF, 11, struct pidfd_info)
