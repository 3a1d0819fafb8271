"""One cell running on ranks: wait for it, show it, stop it, fail it."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from ipyparallel import AsyncResult
from ipyparallel.error import EngineError, RemoteError

from nbmn.cluster.area import Area
from nbmn.cluster.errors import ClusterError, RanksFailed, fold
from nbmn.cluster.listener import Listener
from nbmn.cluster.output import RankOutput
from nbmn.cluster.ranks import name_ranks
from nbmn.messages import CellError, CellReply, CellRequest

POLL = 0.02
"""Seconds between two looks at the ranks while a cell runs."""
STRANDED = 1.0
"""Seconds a rank may wait in a collective after another rank has failed before it is freed."""
INTERRUPT_PATIENCE = 5.0
"""Seconds the ranks have to answer an interrupt."""
OUTPUT_PATIENCE = 2.0
"""Seconds to wait for the last output after a rank's reply."""


class CellRun:
    """A cell that runs, or ran, on some ranks.

    ``--bg`` hands this to the notebook: :meth:`done`, :meth:`wait`,
    :meth:`interrupt` and, with ``-o``, :meth:`results`.
    """

    def __init__(
        self,
        request: CellRequest,
        pending: dict[int, AsyncResult],
        listener: Listener,
        area: Area,
        death: Callable[[], str | None],
        on_end: Callable[[CellRun], None],
    ) -> None:
        self.request = request
        self.ranks = tuple(pending)
        self._pending = pending
        self._listener = listener
        self._area = area
        self._death = death
        self._on_end = on_end
        self._failed_at: float | None = None
        self._freed: tuple[int, ...] = ()
        self._interrupted = False
        self._ended = threading.Event()
        self._ending = threading.Lock()
        self._replies: dict[int, CellReply] = {}
        self._died = ""

    def __repr__(self) -> str:
        state = self.status if self._ended.is_set() else "running"
        return f"<cell {self.request.label} on {name_ranks(self.ranks)}: {state}>"

    # What the notebook asks.

    def done(self) -> bool:
        """Whether every rank has ended. Never waits."""
        return self._ended.is_set()

    @property
    def failed(self) -> bool:
        return bool(self._died) or any(reply.error for reply in self._replies.values())

    @property
    def status(self) -> str:
        """``done``, ``failed`` or ``interrupted``; what it will be, while it runs."""
        if self._interrupted:
            return "interrupted"
        return "failed" if self.failed else "done"

    @property
    def interrupted(self) -> bool:
        """Whether the person stopped it, rather than an error."""
        return self._interrupted

    def wait(self) -> None:
        """Show output until every rank has ended.

        Ctrl-C (Jupyter's stop button) interrupts the ranks and then raises
        KeyboardInterrupt here.

        Raises
        ------
        RanksFailed
            Some rank raised.
        ClusterError
            Ranks died, or did not answer an interrupt.
        """
        try:
            while not self.step():
                time.sleep(POLL)
        except KeyboardInterrupt:
            self.interrupt()
            self._settle(time.monotonic() + INTERRUPT_PATIENCE)
            raise
        self.raise_failure()

    def results(self) -> dict[int, Any]:
        """Values of the cell's last expression, by rank; waits for them.

        Raises
        ------
        RanksFailed
            Some rank raised.
        ClusterError
            The cell was not run with ``-o``.
        """
        if not self.request.keep:
            raise ClusterError("this cell's values were not kept; run it with -o NAME")
        self.wait()
        return {rank: pickle.loads(self._replies[rank].value or b"N.") for rank in self.ranks}

    def interrupt(self) -> None:
        """Raise KeyboardInterrupt on the ranks that still run."""
        self._interrupted = True
        self._listener.interrupt(self._running(), self.request.run)

    def raise_failure(self) -> None:
        """Raise what went wrong, if anything did; the cell has ended."""
        if self._died:
            raise ClusterError(self._died)
        errors = {rank: reply.error for rank, reply in self._replies.items() if reply.error}
        if not errors:
            return
        freed = {rank: errors.pop(rank) for rank in self._freed if _is_interrupt(errors.get(rank))}
        notes = [
            f"{name_ranks([rank])} waited{_at(error)}; nbmn freed it"
            for rank, error in freed.items()
        ]
        raise RanksFailed(fold(errors or freed), notes if errors else ())

    # One step of watching; a background thread or :meth:`wait` calls it.

    def step(self) -> bool:
        """Look once: redraw, free stranded ranks. True when every rank has ended."""
        if self._ended.is_set():
            return True
        for rank in self._running():
            self._collect(rank)
        running = self._running()
        if running:
            self._area.update(self.outputs())
            self._free_stranded(running)
            died = self._death()
            if died:
                self._died = died
        if not running or self._died:
            self._end()
            return True
        return False

    def _running(self) -> list[int]:
        return [rank for rank in self.ranks if rank not in self._replies]

    def _collect(self, rank: int) -> None:
        pending = self._pending[rank]
        if not pending.ready():
            return
        try:
            self._replies[rank] = pending.get()
        except EngineError as error:
            self._died = self._death() or str(error)
        except RemoteError as error:
            # The rank's reply itself failed: an interrupt between two statements of ours.
            trace = "\n".join(error.traceback) if error.traceback else ""
            summary = CellError(error.ename, str(error.evalue), "", trace)
            self._replies[rank] = CellReply(rank, summary)
        reply = self._replies.get(rank)
        if reply and reply.error and self._failed_at is None:
            self._failed_at = time.monotonic()

    def _free_stranded(self, running: Sequence[int]) -> None:
        """After a failure, ranks that wait for the failed one would wait for ever."""
        if self._failed_at is None or self._interrupted:
            return
        for rank in running:
            last = self._listener.beats.get(rank)
            if last is None or last.arrived < self._failed_at:
                return
            if last.beat.state != "waiting" or last.beat.seconds < STRANDED:
                return
        self._freed = tuple(running)
        self._failed_at = time.monotonic()
        self._listener.interrupt(running, self.request.run)

    def _settle(self, deadline: float) -> None:
        while not self.step():
            if time.monotonic() > deadline:
                silent = name_ranks(self._running())
                raise ClusterError(
                    f"{silent} did not answer the interrupt within {INTERRUPT_PATIENCE:g} s: "
                    "native code holds the interpreter. Stop again to keep waiting, "
                    "or %mn_restart to start afresh (variables on the ranks are lost)"
                )
            time.sleep(POLL)

    def _end(self) -> None:
        with self._ending:
            if self._ended.is_set():
                return
            if not self._died:
                for pending in self._pending.values():
                    pending.wait_for_output(OUTPUT_PATIENCE)
            self._area.finish(self.outputs(), self.status)
            self._ended.set()
        self._on_end(self)

    def outputs(self) -> list[RankOutput]:
        """What each rank has put out so far, in rank order."""
        return [_output(rank, self._pending[rank]) for rank in self.ranks]


def _is_interrupt(error: CellError | None) -> bool:
    return error is not None and error.name in ("KeyboardInterrupt", "BrokenCommunicatorError")


def _at(error: CellError) -> str:
    return f" at {error.where}" if error.where else ""


def _output(rank: int, pending: AsyncResult) -> RankOutput:
    """Read ipyparallel's metadata of a single-engine result."""
    metadata = pending.metadata
    if isinstance(metadata, list):
        metadata = metadata[0]
    result = metadata["execute_result"]
    return RankOutput(
        rank,
        metadata["stdout"] or "",
        metadata["stderr"] or "",
        tuple(metadata["outputs"]),
        result.get("content", result) if result else None,
    )
