"""A pipe by which the notebook sees at once that this process ends, and before any other does.

Linux closes the descriptors of a process that ends from the highest down (measured on 6.18; since
4.3 what the kernel still owes a task is done last in, first out). MPICH's proxy sees its own line
to the rank close and kills the other ranks, of which some may be at their end sooner. So the end of
this pipe that stays open is above the proxy's line.
"""

from __future__ import annotations

import fcntl
import functools
import os
import resource

_MOST = 1024  # a table of descriptors of that length costs nothing
_SPARE = 8  # for others that want to be out of the way


def _above_all() -> int:
    """A descriptor that nothing is above, as long as the process has not that many files."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (_MOST if limit == resource.RLIM_INFINITY else min(limit, _MOST)) - _SPARE


class _Pipe:
    """Its ends in this process."""

    def __init__(self) -> None:
        self.far, low = os.pipe()
        self.near = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, _above_all())
        os.close(low)
        os.register_at_fork(after_in_child=self._let_go)

    def _let_go(self) -> None:
        """A worker that outlives this process must not pass for it."""
        near, self.near = self.near, -1
        if near >= 0:
            os.close(near)


@functools.cache
def lifeline() -> int:
    """Return the descriptor of the pipe's far end, which the notebook opens by this process's id;
    -1 where there can be none. The first call makes the pipe."""
    return _Pipe().far if os.path.isdir("/proc/self/fd") else -1
