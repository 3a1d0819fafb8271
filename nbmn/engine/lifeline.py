"""A pipe by which the notebook sees at once that this process ends, and before any other does.

A process that is killed closes its descriptors in their order, lowest first, and then comes to its
end. MPICH's proxy sees its own line to the rank close and kills the other ranks, of which some may
be at their end sooner. So the end of this pipe that stays open is opened before all else, and is
below the proxy's line.
"""

from __future__ import annotations

import fcntl
import functools
import os

_HIGH = 100
"""The descriptor that only the notebook uses is not below this."""


class _Pipe:
    """Its ends in this process."""

    def __init__(self) -> None:
        low, high = os.pipe()
        self.far = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, _HIGH)
        self._near = os.dup2(high, low, inheritable=False)
        os.close(high)
        os.register_at_fork(after_in_child=self._let_go)

    def _let_go(self) -> None:
        """A worker that outlives this process must not pass for it."""
        near, self._near = self._near, -1
        if near >= 0:
            os.close(near)


@functools.cache
def lifeline() -> int:
    """Return the descriptor of the pipe's far end, which the notebook opens by this process's id;
    -1 where there can be none. The first call makes the pipe."""
    return _Pipe().far if os.path.isdir("/proc/self/fd") else -1
