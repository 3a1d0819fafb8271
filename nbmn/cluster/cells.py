"""One cell running on ranks: wait for it, show it, stop it, fail it."""

from __future__ import annotations

import contextvars
import pickle
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from ipyparallel.error import EngineError, RemoteError

from nbmn.cluster.area import Area
from nbmn.cluster.calls import Call
from nbmn.cluster.errors import ClusterError, note, was_freed
from nbmn.cluster.freeing import Freeing
from nbmn.cluster.listener import Listener
from nbmn.cluster.output import RankOutput
from nbmn.cluster.pressing import Presses
from nbmn.cluster.verdict import verdict
from nbmn.cluster.watching import Answer, Turn
from nbmn.debug.averaging import uneven
from nbmn.debug.diagnosis import Diagnosis
from nbmn.debug.states import RankState
from nbmn.messages import CellError, CellReply, CellRequest
from nbmn.ranks import name_ranks

TICK = 0.1
"""Seconds between two looks at ranks that run; an answer is seen at once."""
OUTPUT_PATIENCE = 2.0
"""Seconds to wait for the last output after a rank's reply."""


class Ranks(Protocol):
    """What a run asks of the session it belongs to."""

    listener: Listener

    @property
    def active(self) -> tuple[CellRun, ...]: ...
    def look(self, run: str, answers: Mapping[int, Answer]) -> dict[int, RankState]: ...
    def explain(self, states: Mapping[int, RankState], since: float) -> Diagnosis | None: ...
    def compare(self, errors: Mapping[int, CellError], since: float) -> str: ...
    def delay(self, states: Mapping[int, RankState]) -> Diagnosis | None: ...
    def kill(self, ranks: Sequence[int]) -> None: ...
    def send_cell(self, run: CellRun) -> dict[int, Call]: ...
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
        self._answers: dict[int, Answer] = {}
        self._sent_at = 0.0
        self._freeing = Freeing(session.listener, request.run)
        self.presses = Presses(self)
        self._awaited = False
        self._notice = ""
        """Something about the cell as a whole, shown while it runs."""
        self._announced = ""
        self._interrupted = False
        self.trouble: BaseException | None = None
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
        """Whether some rank raised, had to be freed or is left waiting, or all are gone."""
        raised = any(reply.error for reply in self._replies.values())
        return self.trouble is not None or raised or self._stuck() is not None

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

    @property
    def clean(self) -> bool:
        """Whether the next cell may go on with the communicators as this one left them."""
        broken = any(reply.broken for reply in self._replies.values())
        return not (self.failed or self.interrupted or broken)

    def comes_after(self, other: CellRun) -> bool:
        """Whether it waits for the end of another cell."""
        return other in self._before

    @property
    def awaited(self) -> bool:
        """Whether the notebook waits for its end, be it because of a cell that comes after it."""
        later = (run for run in self._session.active if run.comes_after(self))
        return self._awaited or any(run.awaited for run in later)

    @property
    def turn(self) -> Turn:
        """Its place among the cells that have not ended."""
        after = tuple(run.request.run for run in self._before if not run.done())
        return Turn(self.request.run, self.ranks, after, bool(self._calls))

    def errors(self) -> dict[int, CellError]:
        """What it raised so far, by rank."""
        return {rank: reply.error for rank, reply in self._replies.items() if reply.error}

    def running(self) -> list[int]:
        """Ranks that were sent the cell and have not ended it."""
        return (
            [rank for rank in self._calls if rank not in self._replies] if not self.done() else []
        )

    def wait(
        self,
        timeout: float | None = None,
        *,
        meanwhile: Callable[[CellRun], None] | None = None,
    ) -> None:
        """Wait until every rank has ended; first do what is to be done ``meanwhile``.

        After ``timeout`` seconds it returns all the same, and :meth:`done` tells.

        Ctrl-C (Jupyter's stop button) interrupts the ranks. A second one kills those that
        have not answered by then, after a countdown; a third one stops that.

        Raises
        ------
        RanksInterrupted
            After a Ctrl-C, a KeyboardInterrupt.
        RanksFailed
            Some rank raised.
        RanksStuck
            Ranks waited for ever, and were freed, or wait in the background.
        ClusterError
            Ranks died, or did not answer an interrupt.
        """
        self._awaited = True
        try:
            if meanwhile is not None:
                meanwhile(self)
            ended = self._ended.wait(timeout)
        except KeyboardInterrupt:
            self.presses.stop()
        self._awaited = ended  # else the notebook is free again
        if ended:
            self.raise_failure()

    def wait_for_end(self, seconds: float) -> bool:
        """Wait for at most so long; says whether every rank has ended."""
        return self._ended.wait(seconds)

    def announce(self, text: str) -> None:
        """Show something about the cell as a whole while it runs; empty for nothing more."""
        self._announced = text

    def states(self) -> dict[int, RankState]:
        """What every rank does, as this cell sees it."""
        return self._session.look(self.request.run, self._answers)

    def kill(self, ranks: Sequence[int]) -> None:
        """Kill ranks; all others end with them."""
        self._session.kill(ranks)

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

    def interrupt(self, ranks: Iterable[int] | None = None) -> None:
        """Raise KeyboardInterrupt on the ranks that still run; one that waits never runs."""
        if self.done():
            return
        self._interrupted = True
        chosen = set(self.ranks if ranks is None else ranks)
        self.presses.tell(chosen)
        mine = [rank for rank in self.running() if rank in chosen]
        self._session.listener.interrupt(mine, self.request.run)
        self._wake.set()

    def raise_failure(self) -> None:
        """Raise what went wrong, if anything did; the cell has ended."""
        failure = self._failure()
        if failure is not None:
            raise failure

    def _failure(self) -> BaseException | None:
        if self.trouble is not None:
            return self.trouble
        errors, freed = self.errors(), self._freeing.ranks
        note = "" if freed else self._session.compare(errors, self._sent_at)
        return verdict(errors, freed, self._stuck(), note)

    def _stuck(self) -> Diagnosis | None:
        """Who waited for ever and was freed, or waits in the background for ranks that ended."""
        if self._freeing.ranks:
            return self._freeing.diagnosis
        if self.errors():
            return None
        return uneven({rank: reply.averaged for rank, reply in self._replies.items()})

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
                self._sent_at = time.monotonic()
                self._calls = self._session.send_cell(self)
                for call in self._calls.values():
                    call.when_done(self._wake.set)
                if self._interrupted:  # while it was being sent
                    self.interrupt()
            while self.running() and self.trouble is None:
                self._wake.wait(TICK)
                self._wake.clear()
                self._step()
        except Exception as error:  # noqa: BLE001 - raised where somebody waits
            self.trouble = error
        try:
            self._finish()
        except Exception as error:  # noqa: BLE001 - raised where somebody waits
            self.trouble = self.trouble or error
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
            self._diagnose(running)
            self._area.update(self._outputs(live=True), self._announced or self._notice)
            died = self._session.death()
            if died:
                self.trouble = ClusterError(died)

    def _collect(self, rank: int) -> None:
        call = self._calls[rank]
        if not call.done():
            return
        try:
            self._replies[rank] = call.result()
        except EngineError as error:
            self.trouble = ClusterError(self._last_words(str(error)))
        except RemoteError as error:
            trace = error.traceback or ""
            summary = CellError(error.ename, str(error.evalue), "", trace)
            self._replies[rank] = CellReply(rank, summary)
        reply = self._replies.get(rank)
        if reply:
            error = reply.error
            first = error.origin or error if error else None
            self._answers[rank] = Answer(first, time.monotonic())

    def _last_words(self, otherwise: str) -> str:
        """Why a rank died; ipyparallel may know that it did before mpiexec has said why."""
        deadline = time.monotonic() + OUTPUT_PATIENCE
        while time.monotonic() < deadline:
            died = self._session.death()
            if died:
                return died
            time.sleep(TICK)
        return otherwise

    def _diagnose(self, running: Sequence[int]) -> None:
        """Say why ranks wait; free those that would wait for ever."""
        states = self.states()
        found = self._session.explain(states, self._sent_at)
        if found is None or not self._ends_by(found):
            slow = found or self._session.delay(states)
            self._notice = str(slow) if slow is not None else ""
            return
        self._notice = str(found)
        self._freeing.free(found, running)

    def _ends_by(self, found: Diagnosis) -> bool:
        """Whether nothing the person may still do lets the ranks go on.

        While the notebook is free another cell may let the missing ranks take part.
        """
        return self.awaited or found.kind != "outside"

    def _finish(self) -> None:
        if self.trouble is None:
            deadline = time.monotonic() + OUTPUT_PATIENCE
            for call in self._calls.values():
                call.output.complete.wait(max(0.0, deadline - time.monotonic()))
        reported = [rank for rank, reply in self._replies.items() if reply.reported]
        last = "" if self._awaited else str(self._failure() or "")
        self._area.finish(self._outputs(live=False), self.status, reported, last)

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
        if error is None or not (live or self._interrupted):
            return ""
        if rank in self._freeing.ranks and was_freed(error):
            return ""  # it is told of in the diagnosis
        return note(error, self._interrupted)
