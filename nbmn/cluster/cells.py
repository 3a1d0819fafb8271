"""One cell running on ranks: wait for it, show it, stop it, fail it."""

from __future__ import annotations

import contextvars
import pickle
import threading
import time
from collections.abc import Sequence
from typing import Any, NoReturn, Protocol

from ipyparallel.error import EngineError, RemoteError

from nbmn.cluster.area import Area
from nbmn.cluster.calls import Call
from nbmn.cluster.errors import ClusterError, RanksFailed, RanksInterrupted, fold
from nbmn.cluster.listener import Listener
from nbmn.cluster.output import RankOutput
from nbmn.cluster.ranks import name_ranks
from nbmn.messages import CellError, CellReply, CellRequest

TICK = 0.1
"""Seconds between two looks at ranks that run; an answer is seen at once."""
STRANDED = 1.0
"""Seconds a rank may wait in a collective after another rank has failed before it is freed."""
LONG_WAIT = 3.0
"""Seconds in a collective, without all ranks in the cell, after which a line says so."""
INTERRUPT_PATIENCE = 5.0
"""Seconds the ranks have to answer an interrupt."""
OUTPUT_PATIENCE = 2.0
"""Seconds to wait for the last output after a rank's reply."""


class Ranks(Protocol):
    """What a run asks of the session it belongs to."""

    listener: Listener

    @property
    def size(self) -> int: ...
    def send_cell(self, request: CellRequest, ranks: Sequence[int]) -> dict[int, Call]: ...
    def death(self) -> str | None: ...
    def cell_ended(self, run: CellRun) -> None: ...


class CellRun:
    """A cell that waits for its turn, runs, or ran, on some ranks.

    ``--bg`` hands this to the notebook: :meth:`done`, :meth:`wait`,
    :meth:`interrupt` and, with ``-o``, :meth:`results`.

    A thread of its own watches the ranks, so that a KeyboardInterrupt, which
    only the main thread sees, can find nothing half done.
    """

    def __init__(
        self,
        request: CellRequest,
        ranks: Sequence[int],
        session: Ranks,
        area: Area,
        before: Sequence[CellRun] = (),
    ) -> None:
        self.request = request
        self.ranks = tuple(ranks)
        self._session = session
        self._area = area
        self._before = before
        # The cell's own context, so that output appears under the cell that made it.
        self._context = contextvars.copy_context()
        self._calls: dict[int, Call] = {}
        self._replies: dict[int, CellReply] = {}
        self._failed_at: float | None = None
        self._freed: tuple[int, ...] = ()
        self._interrupted = False
        self._trouble: BaseException | None = None
        """What went wrong on no rank in particular."""
        self._wake = threading.Event()
        self._ended = threading.Event()

    def __repr__(self) -> str:
        queued = not self._calls and any(not run.done() for run in self._before)
        now = "waiting for its turn" if queued else "running"
        state = self.status if self.done() else now
        return f"<cell {self.request.label} on {name_ranks(self.ranks)}: {state}>"

    # What the notebook asks.

    def done(self) -> bool:
        """Whether every rank has ended. Never waits."""
        return self._ended.is_set()

    @property
    def failed(self) -> bool:
        """Whether some rank raised, or all are gone."""
        return self._trouble is not None or any(reply.error for reply in self._replies.values())

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

    def running(self) -> list[int]:
        """Ranks that were sent the cell and have not ended it."""
        return (
            [rank for rank in self._calls if rank not in self._replies] if not self.done() else []
        )

    def wait(self) -> None:
        """Wait until every rank has ended.

        Ctrl-C (Jupyter's stop button) interrupts the ranks; a second one stops
        waiting for them.

        Raises
        ------
        RanksInterrupted
            After a Ctrl-C, a KeyboardInterrupt.
        RanksFailed
            Some rank raised.
        ClusterError
            Ranks died, or did not answer an interrupt.
        """
        try:
            self._ended.wait()
        except KeyboardInterrupt:
            self.stop()
        self.raise_failure()

    def stop(self) -> NoReturn:
        """Interrupt the ranks, give them time to answer, and raise what :meth:`wait` does then."""
        self.interrupt()
        self._await_stop()
        raise RanksInterrupted(self.ranks, self.running()) from None

    def _await_stop(self) -> None:
        """Give the ranks time to answer an interrupt; a second Ctrl-C cuts it short."""
        try:
            stopped = self._ended.wait(INTERRUPT_PATIENCE)
        except KeyboardInterrupt:
            return
        if not stopped:
            raise ClusterError(
                f"{name_ranks(self.running())} did not answer the interrupt within "
                f"{INTERRUPT_PATIENCE:g} s. Native code holds the interpreter, or the cell "
                "caught KeyboardInterrupt. The next cell comes after this one; %mn_restart "
                "starts afresh (variables on the ranks are lost)"
            ) from None

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
        """Raise KeyboardInterrupt on the ranks that still run; one that waits never runs."""
        if self.done():
            return
        self._interrupted = True
        self._session.listener.interrupt(self.running(), self.request.run)
        self._wake.set()

    def raise_failure(self) -> None:
        """Raise what went wrong, if anything did; the cell has ended."""
        if self._trouble is not None:
            raise self._trouble
        errors = {rank: reply.error for rank, reply in self._replies.items() if reply.error}
        if not errors:
            return
        freed = {rank: errors.pop(rank) for rank in self._freed if _is_interrupt(errors.get(rank))}
        notes = [
            f"{name_ranks([rank])} waited{_at(error)}; nbmn freed it"
            for rank, error in freed.items()
        ]
        raise RanksFailed(fold(errors or freed), notes if errors else ())

    # The watching thread.

    def start(self) -> None:
        """Begin to watch."""
        run, name = self._context.run, f"nbmn-cell {self.request.label}"
        threading.Thread(target=run, args=(self._watch,), name=name, daemon=True).start()

    def look(self) -> None:
        """Have the thread look at the ranks now."""
        self._wake.set()

    def _watch(self) -> None:
        try:
            self._await_turn()
            if not self._interrupted:
                self._calls = self._session.send_cell(self.request, self.ranks)
                for call in self._calls.values():
                    call.when_done(self._wake.set)
                if self._interrupted:  # while it was being sent
                    self.interrupt()
            while self.running() and self._trouble is None:
                self._wake.wait(TICK)
                self._wake.clear()
                self._step()
        except Exception as error:  # noqa: BLE001 - raised where somebody waits
            self._trouble = error
        try:
            self._finish()
        except Exception as error:  # noqa: BLE001 - raised where somebody waits
            self._trouble = self._trouble or error
        finally:
            self._session.cell_ended(self)
            self._ended.set()

    def _await_turn(self) -> None:
        for run in self._before:
            while not (run.done() or self._interrupted):
                run._ended.wait(TICK)
        self._before = ()  # else every run would keep all earlier ones alive

    def _step(self) -> None:
        for rank in self.running():
            self._collect(rank)
        running = self.running()
        if running:
            self._area.update(self._outputs(live=True))
            self._free_stranded(running)
            died = self._session.death()
            if died:
                self._trouble = ClusterError(died)

    def _collect(self, rank: int) -> None:
        call = self._calls[rank]
        if not call.done():
            return
        try:
            self._replies[rank] = call.result()
        except EngineError as error:
            self._trouble = ClusterError(self._last_words(str(error)))
        except RemoteError as error:
            trace = "\n".join(error.traceback) if error.traceback else ""
            summary = CellError(error.ename, str(error.evalue), "", trace)
            self._replies[rank] = CellReply(rank, summary)
        reply = self._replies.get(rank)
        if reply and reply.error and self._failed_at is None:
            self._failed_at = time.monotonic()

    def _last_words(self, otherwise: str) -> str:
        """Why a rank died; ipyparallel may know that it did before mpiexec has said why."""
        deadline = time.monotonic() + OUTPUT_PATIENCE
        while time.monotonic() < deadline:
            died = self._session.death()
            if died:
                return died
            time.sleep(TICK)
        return otherwise

    def _free_stranded(self, running: Sequence[int]) -> None:
        """After a failure, ranks that wait for the failed one would wait for ever."""
        if self._failed_at is None or self._interrupted:
            return
        for rank in running:
            last = self._session.listener.beats.get(rank)
            if last is None or last.arrived < self._failed_at or last.beat.run != self.request.run:
                return
            if last.beat.state != "waiting" or last.beat.seconds < STRANDED:
                return
        self._freed = tuple(sorted({*self._freed, *running}))
        self._failed_at = time.monotonic()
        self._session.listener.interrupt(running, self.request.run)

    def _finish(self) -> None:
        if self._trouble is None:
            deadline = time.monotonic() + OUTPUT_PATIENCE
            for call in self._calls.values():
                call.output.complete.wait(max(0.0, deadline - time.monotonic()))
        reported = [rank for rank, reply in self._replies.items() if reply.reported]
        self._area.finish(self._outputs(live=False), self.status, reported)

    def _outputs(self, live: bool) -> list[RankOutput]:
        """What each rank has put out so far, in rank order."""
        outputs = []
        for rank, call in sorted(self._calls.items()):
            reply = self._replies.get(rank)
            failed = reply is not None and reply.error is not None
            outputs.append(call.output.output(self._note(rank, live), errors=not failed))
        return outputs

    def _note(self, rank: int, live: bool) -> str:
        """A rank's error, where the cell as a whole does not raise it (yet)."""
        reply = self._replies.get(rank)
        error = reply.error if reply else None
        if reply is None and live:
            return self._waiting(rank)
        if error is None or not (live or self._interrupted):
            return ""
        if self._interrupted and _is_interrupt(error):
            return f"stopped{_at(error)}\n"
        return f"{error.name}{_at(error)}: {error.message}\n"

    def _waiting(self, rank: int) -> str:
        """What a rank waits for, once that is long enough to be worth a line."""
        last = self._session.listener.beats.get(rank)
        if last is None or last.beat.run != self.request.run or last.beat.state != "waiting":
            return ""
        if last.beat.seconds < LONG_WAIT:
            return ""
        absent = sorted(set(range(self._session.size)) - set(self.running()))
        # Ranks that compute may still come; those that do not run this cell will not.
        if not absent:
            return ""
        where = f" at {last.beat.where}" if last.beat.where else ""
        verb = "does not run" if len(absent) == 1 else "do not run"
        return (
            f"waits in {last.beat.operation}{where} for {last.beat.seconds:.0f} s; "
            f"{name_ranks(absent)} {verb} this cell (any more): stop it, or let them take part\n"
        )


def _is_interrupt(error: CellError | None) -> bool:
    return error is not None and error.name in ("KeyboardInterrupt", "BrokenCommunicatorError")


def _at(error: CellError) -> str:
    return f" at {error.where}" if error.where else ""
