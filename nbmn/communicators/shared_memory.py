"""Memory that the processes of one host share, without names: nothing can be left behind.

A segment is an anonymous file in memory, which peers open through /proc. It does not count
against the size of /dev/shm (64 MB in many containers), and lives as long as somebody maps it.
"""

from __future__ import annotations

import itertools
import mmap
import os
import sys
import weakref
from pathlib import Path

import numpy as np

from nbmn.communicators import memory_files

MOST_LENT = 4
"""Segments lent at a time; whoever keeps more old gradients gets copies."""


MOST_SEGMENTS = MOST_LENT + 1
"""Segments that a rank can have at a time."""


class SharedMemoryError(RuntimeError):
    """There is no memory to share, or not enough."""


class Segment:
    """Shared memory made by this process."""

    def __init__(self, serial: int, nbytes: int) -> None:
        if sys.platform != "linux":
            raise SharedMemoryError(f"anonymous shared memory needs Linux, not {sys.platform}")
        check_available(nbytes)
        self.serial = serial
        self.nbytes = nbytes
        self.fd = memory_files.create("nbmn")
        weakref.finalize(self, os.close, self.fd)
        # Not ftruncate: memory that is not there must be an error now, not a SIGBUS later.
        os.posix_fallocate(self.fd, 0, nbytes)
        self._map = mmap.mmap(self.fd, nbytes)
        self.bytes = np.frombuffer(self._map, np.uint8)
        self.used = False
        """All neighbours have opened it."""
        self._lent: weakref.ref[np.ndarray] | None = None

    @property
    def lent(self) -> bool:
        """Some array made from the last :meth:`lend` is alive."""
        return self._lent is not None and self._lent() is not None

    def lend(self) -> np.ndarray:
        """Return the memory as uint8. While views of it live, it must not be overwritten."""
        # Views of views refer to this array, not to each other: NumPy sees to that.
        owner = np.frombuffer(self._map, np.uint8)
        self._lent = weakref.ref(owner)
        return owner


def open_segment(pid: int, fd: int, nbytes: int) -> np.ndarray:
    """Map a segment of another process, as uint8."""
    mine = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR)
    try:
        return np.frombuffer(mmap.mmap(mine, nbytes), np.uint8)
    finally:
        os.close(mine)


class Pool:
    """The segments of one communicator on this rank."""

    def __init__(self) -> None:
        self._serials = itertools.count(1)
        self.segments: list[Segment] = []

    def take(self, nbytes: int) -> Segment:
        """Return a segment that nobody uses, of ``nbytes`` at least."""
        free = [segment for segment in self.segments if not segment.lent]
        fitting = [segment for segment in free if segment.nbytes >= nbytes]
        if fitting:
            return min(fitting, key=lambda segment: segment.nbytes)
        for segment in free:
            self.segments.remove(segment)
        fresh = Segment(next(self._serials), nbytes)
        self.segments.append(fresh)
        return fresh

    @property
    def may_lend(self) -> bool:
        """There are not too many lent already."""
        return sum(segment.lent for segment in self.segments) < MOST_LENT


def check_available(nbytes: int) -> None:
    """Raise if this host or container has not that much memory left; local.

    Raises
    ------
    SharedMemoryError
        It has not.
    """
    for what, left in (("the host", _left_on_host()), ("the container", _left_in_group())):
        if left is not None and nbytes > left:
            raise SharedMemoryError(
                f"{what} has {left / 1e6:.0f} MB of memory left, {nbytes / 1e6:.0f} MB are needed"
            )


def _left_on_host() -> int | None:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return 1024 * int(line.split()[1])
    except OSError:
        pass
    return None


def _left_in_group() -> int | None:
    try:
        path = Path("/proc/self/cgroup").read_text().strip().rpartition("::")[2]
        group = Path("/sys/fs/cgroup") / path.lstrip("/")
        limit = (group / "memory.max").read_text().strip()
        return None if limit == "max" else int(limit) - _used(group)
    except (OSError, ValueError):
        return None


def _used(group: Path) -> int:
    used = int((group / "memory.current").read_text())
    for line in (group / "memory.stat").read_text().splitlines():
        if line.startswith("inactive_file "):  # the kernel gives these pages back
            used -= int(line.split()[1])
    return used
