"""One communicator of NCCL, with a stream and a thread of its own.

NCCL's calls can block: while ranks meet, while first data makes them connect, while an abort waits
for kernels to end. So they are made on a thread, and who waits for them polls: that can be
interrupted.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from nbmn.gpu.launcher import Launcher, Task, aside
from nbmn.gpu.nccl import IN_PROGRESS, SUCCESS, NcclComm, NcclFailure
from nbmn.gpu.runtime import Event, Gpu

_PAUSE = 200e-6
GRACE = 20e-3  # seconds; a call that has been under way for so long is stuck


class Channel:
    """A communicator from its making to its end; all methods are local and return at once.

    Parameters
    ----------
    device
        On which all that it moves lies.
    """

    def __init__(self, gpu: Gpu, device: int, size: int, unique_id: bytes, rank: int) -> None:
        self.device = device
        self.unique_id = unique_id
        self.operations = 0
        """That were enqueued."""
        self._gpu = gpu
        self._comm: NcclComm | None = None
        self._stream: Any = None
        self._ended = False
        # One that lets a thread in again: a finalizer may run wherever the thread is.
        self._ending = threading.RLock()
        self._idle = threading.Event()
        """No call of NCCL's that enqueues is under way."""
        self._idle.set()
        self._begun = 0.0
        """When the last such call was."""
        self._launcher = Launcher("nbmn-nccl")
        self.started: Task = self._launcher.submit(lambda: self._start(size, unique_id, rank))
        """Done when all ranks have met."""

    def enqueue(
        self, ready: Event, calls: Callable[[NcclComm, int], None], *, to_the_end: bool
    ) -> Task:
        """Enqueue operations; the task's result is an event that is reached when they are done.

        Parameters
        ----------
        ready
            Reached when what they need is computed.
        calls
            Gets the communicator and the stream's handle, and begins operations.
        to_the_end
            The task is over when they are done, rather than when they are enqueued.
        """
        self.operations += 1
        return self._launcher.submit(lambda: self._enqueue(ready, calls, to_the_end))

    def check(self) -> None:
        """Raise NcclFailure if NCCL reports an error; local."""
        self._progress()

    def abort(self, keep: Any = None) -> Task | None:
        """Give up what is under way; ``keep`` lives until the device is through with it.

        Returns
        -------
        Done when it is; None if it was given up before.
        """
        return self._end("abort", keep)

    def destroy(self) -> Task | None:
        """Let go of a communicator on which nothing is under way; as :meth:`abort`."""
        return self._end("destroy", None)

    def _end(self, way: str, keep: Any) -> Task | None:
        with self._ending:
            if self._ended:
                return None
            self._ended = True
            comm = self._comm
        self._launcher.close()
        if comm is None:
            # There is no handle before ranks have met: the thread gives up what it then gets.
            return self.started
        return aside(lambda: self._give_up(comm, way, keep), f"nbmn-nccl-{way}")

    def _give_up(self, comm: NcclComm, way: str, keep: Any) -> None:
        runtime = self._gpu.runtime
        # Who talks to it is through first; one that is stuck in that is freed by the abort.
        self._idle.wait(max(self._begun + GRACE - time.monotonic(), 0.0))
        with self._ending:
            pass
        runtime.use(self.device)
        getattr(comm, way)()
        if keep:
            # Kernels may be yet to come to the end that the abort has told them of.
            runtime.await_(runtime.record(self._stream))

    def _start(self, size: int, unique_id: bytes, rank: int) -> None:
        self._gpu.runtime.use(self.device)
        # First, as it can fail: afterwards the other ranks would be in a communicator without it.
        self._stream = self._gpu.runtime.stream()
        comm = self._gpu.nccl.init(size, unique_id, rank)
        with self._ending:
            self._comm = comm
            too_late = self._ended
        if too_late:
            comm.abort()
            return
        self._settle()

    def _enqueue(
        self, ready: Event, calls: Callable[[NcclComm, int], None], to_the_end: bool
    ) -> Event:
        runtime, nccl, comm = self._gpu.runtime, self._gpu.nccl, self._comm
        runtime.hold(self._stream, ready)
        with self._ending:
            if comm is None or self._ended:
                raise RuntimeError("this communicator of NCCL was given up")
            self._begun = time.monotonic()
            self._idle.clear()
        try:
            nccl.group_start()
            try:
                calls(comm, runtime.handle(self._stream))
            finally:
                nccl.group_end()
        finally:
            self._idle.set()
        self._settle()
        done = runtime.record(self._stream)
        if to_the_end:
            runtime.await_(done)
        return done

    def _settle(self) -> None:
        """Wait until a driver that does not block has done what it was asked."""
        while self._progress():
            time.sleep(_PAUSE)

    def _progress(self) -> bool:
        """Say whether calls go on in the background; raises NcclFailure."""
        # With the lock: a communicator that is being given up must not be asked.
        with self._ending:
            comm = self._comm
            status = SUCCESS if comm is None or self._ended else comm.state()
        if status not in (SUCCESS, IN_PROGRESS):
            raise NcclFailure(status, self._gpu.nccl.describe(status))
        return status == IN_PROGRESS
