"""How a rank ends: with all others, or else at once and by what ended it.

At its exit, and where the user's code calls ``MPI.Finalize``, MPI waits for all ranks to do the
same, for ever if only one of them does.
"""

from __future__ import annotations

import atexit
import faulthandler
import functools
import os
import signal
import sys
import threading
import time
from types import FrameType
from typing import Any

from nbmn.engine.blackbox import CRASH
from nbmn.engine.reporter import reporter

PATIENCE = 1.5
"""Seconds that a rank waits for the others to exit too."""
FINALIZE_PATIENCE = 5.0
"""Seconds that ``MPI.Finalize`` waits for the other ranks' calls."""
LOOK = 0.01
"""Seconds between two looks whether they do."""


class Leaving:
    """Sees to the end of this process."""

    def __init__(self) -> None:
        self._comm: Any = None
        self._box = -1
        self._before: Any = None
        self._signal = 0
        self._pid = os.getpid()
        self._left = False
        atexit.register(self._exit)  # before others register, and so called after them

    def watch(self, comm: Any, box: int) -> None:
        """Take SIGTERM from now on. Local.

        Parameters
        ----------
        comm
            An MPI communicator of all ranks, used for nothing else.
        box
            The file for this rank's stack, see :mod:`nbmn.engine.blackbox`; -1 for none.
        """
        self._comm, self._box = comm, box
        from mpi4py import MPI

        self._before = signal.signal(signal.SIGTERM, self._terminate)
        # What hangs on COMM_SELF is deleted when MPI begins to end.
        MPI.COMM_SELF.Set_attr(MPI.Comm.Create_keyval(delete_fn=self._finalize), None)
        # A fork dies of it as other programs do, also where it comes before Python is ready there.
        os.register_at_fork(before=_hold, after_in_parent=_let_go, after_in_child=self._hand_back)

    def _hand_back(self) -> None:
        if signal.getsignal(signal.SIGTERM) == self._terminate:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        _let_go()

    def _terminate(self, number: int, frame: FrameType | None) -> None:
        self._signal = number
        if reporter().run:
            self._die()
        # A thread of the user's may keep the interpreter from its end.
        threading.Thread(target=self._die_late, name="nbmn-leaving", daemon=True).start()
        if callable(self._before):
            self._before(number, frame)  # ipyparallel's, which ends its loop

    def _die_late(self) -> None:
        time.sleep(2 * PATIENCE)
        self._die()

    def _exit(self) -> None:
        """Called last of all before MPI's own exit."""
        if self._comm is not None:
            self._leave()

    def _finalize(self, *_: object) -> None:
        # An error, or an interrupt, would leave MPI half ended.
        try:
            self._leave(FINALIZE_PATIENCE)
        except BaseException:  # noqa: BLE001
            self._die()

    def _leave(self, patience: float = PATIENCE) -> None:
        """Return if all ranks leave."""
        if os.getpid() == self._pid and not self._left:
            self._left = self._all_leave(patience)
            if not self._left:
                self._die()

    def _all_leave(self, patience: float) -> bool:
        all_here = self._comm.Ibarrier()
        deadline = time.monotonic() + patience
        while not all_here.Test():
            if time.monotonic() > deadline:
                return False
            time.sleep(LOOK)
        return True

    def _die(self) -> None:
        if reporter().run and self._box >= 0:
            os.write(self._box, CRASH.encode())  # so that the notebook knows the line
            faulthandler.dump_traceback(self._box, all_threads=False)
        sys.stdout.flush()
        sys.stderr.flush()
        if self._signal and threading.current_thread() is threading.main_thread():
            signal.signal(self._signal, signal.SIG_DFL)
            os.kill(os.getpid(), self._signal)
        os._exit(128 + self._signal if self._signal else 1)


def _hold() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _let_go() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


@functools.cache
def leaving() -> Leaving:
    """The one of this process."""
    return Leaving()
