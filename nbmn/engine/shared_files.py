"""MPI's shared memory, without names that outlive a rank."""

from __future__ import annotations

import contextlib
import os

_NAMES = "/dev/shm/mpich_shm_"


def forget_names() -> None:
    """Remove the names of the memory that MPICH shares between ranks of this host; local.

    MPICH removes them at its end, which a rank that is killed never comes to: each would leave
    some megabytes. All ranks must have talked to each other before: then they have the
    memory, and need the name no more.
    """
    with contextlib.suppress(OSError), open("/proc/self/maps") as maps:
        for name in {line.split()[-1] for line in maps if _NAMES in line}:
            with contextlib.suppress(OSError):  # another rank was here first
                os.unlink(name)
