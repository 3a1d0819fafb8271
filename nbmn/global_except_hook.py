"""Ends all ranks of an ``mpiexec`` run when one of them has an uncaught exception.

Without it the other ranks wait for the one that is gone, often for ever. In a notebook,
and in the ranks it started, nothing is ever aborted: there a failing cell is reported, and the
ranks keep their state.
"""

from __future__ import annotations

import array
import contextlib
import os
import stat
import sys
import time
import warnings
from collections.abc import Callable
from types import TracebackType
from typing import Any, TextIO

VARIABLES = ("CHAINERMN_FORCE_ABORT_ON_EXCEPTION", "CHAINERMN_FORCE_ABORT_ON_EXCEPTIONS")
"""Either, if not empty, adds the hook when nbmn is imported.

The first is what ChainerMN reads, the second what its documentation says.
"""


def add_hook() -> None:
    """Abort the MPI job, with exit status 1, when this process has an uncaught exception; local.

    The traceback is printed before, by the hook that was there. To be called on every rank, or
    set one of :data:`VARIABLES` for all of them. Within IPython it warns and does nothing.
    """
    if _in_ipython():
        warnings.warn(
            "global_except_hook: not added, because this is an IPython session or one of its "
            "ranks: an abort would end them all and lose their state",
            stacklevel=2,
        )
    elif isinstance(sys.excepthook, _AbortingHook):
        warnings.warn("global_except_hook: the hook was added already", stacklevel=2)
    else:
        sys.excepthook = _AbortingHook(sys.excepthook)


add_global_except_hook = add_hook


def _add_hook_if_enabled() -> None:
    """Add the hook if the environment says so, and this is not IPython."""
    enabled = any(os.environ.get(name) for name in VARIABLES)
    if enabled and not _in_ipython() and not isinstance(sys.excepthook, _AbortingHook):
        add_hook()


class _AbortingHook:
    """Calls another hook, then aborts."""

    def __init__(self, before: Callable[..., Any]) -> None:
        self._before = before

    def __call__(
        self, kind: type[BaseException], value: BaseException, trace: TracebackType | None
    ) -> None:
        try:
            self._before(kind, value, trace)
        finally:
            if not _in_ipython():
                _abort()


def _abort() -> None:
    from nbmn.communicators.runtime import mpi

    try:
        MPI = mpi()  # initialised now if it was not: other ranks may wait for just that
    except (ImportError, RuntimeError):
        return  # nothing to abort, or not from this process
    if MPI.Is_finalized():
        return
    world = MPI.COMM_WORLD
    try:
        _tell(f"rank {world.Get_rank()} of {world.Get_size()}")
    finally:  # whatever the script has put in place of a stream
        world.Abort(1)


def _tell(rank: str) -> None:
    print(
        f"\nnbmn: {rank} ends the job by MPI_Abort, because of the exception above",
        file=sys.stderr,
    )
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
        _drain(stream)


def _drain(stream: TextIO, longest: float = 1.0) -> None:
    """Wait until the launcher has read what was printed: an abort would overtake it."""
    import fcntl  # not at the top: import nbmn imports this module, on Windows too
    import termios

    unread = array.array("i", [0])
    give_up = time.monotonic() + longest
    # A stream that is no file, or of a kind that cannot say, is not waited for.
    with contextlib.suppress(OSError):
        number = stream.fileno()
        while stat.S_ISFIFO(os.fstat(number).st_mode) and time.monotonic() < give_up:
            fcntl.ioctl(number, termios.FIONREAD, unread)
            if not unread[0]:
                return
            time.sleep(0.001)


def _in_ipython() -> bool:
    """Say whether an IPython shell runs in this process, as in a notebook or an engine."""
    ipython = sys.modules.get("IPython")  # not imported, not running
    return ipython is not None and ipython.get_ipython() is not None
