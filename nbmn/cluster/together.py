"""One call that ranks work on together, outside cells: wait for it, stop it, free who is stuck."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ipyparallel.error import EngineError

from nbmn import frames
from nbmn.cluster.calls import Call
from nbmn.cluster.cells import TICK
from nbmn.cluster.errors import NoRanksError, RanksInterrupted
from nbmn.cluster.freeing import Freeing
from nbmn.cluster.pressing import INTERRUPT_PATIENCE
from nbmn.cluster.session import Session
from nbmn.cluster.verdict import verdict
from nbmn.cluster.watching import Answer, look
from nbmn.debug.diagnosis import Diagnosis
from nbmn.messages import CellError


@dataclass(slots=True)
class Outcome:
    """What ranks answered, a ``nbmn.engine.transfer.Reply`` each, by rank."""

    values: dict[int, frames.Parts] = field(default_factory=dict)
    errors: dict[int, CellError] = field(default_factory=dict)
    diagnosis: Diagnosis | None = None
    """Who waited for ever, and was freed."""
    freed: frozenset[int] = frozenset()
    """The ranks that were interrupted for that."""

    def require(self) -> dict[int, frames.Parts]:
        """The values.

        Raises
        ------
        RanksFailed
            A rank answered with an error.
        RanksStuck
            None did, but some waited for ever.
        """
        failure = verdict(self.errors, self.freed, self.diagnosis)
        if failure is not None:
            raise failure
        return self.values


def together(
    session: Session, title: str, ranks: Sequence[int], send: Callable[[str], Mapping[int, Call]]
) -> Outcome:
    """Have ranks work on something, and wait for it.

    Parameters
    ----------
    title
        What it is, such as ``%mn_push model``.
    ranks
        Those that take part.
    send
        Sends each of them its call, given the name of the run.

    Raises
    ------
    ClusterError
        Ranks are still busy with a cell.
    RanksInterrupted
        After a Ctrl-C, which interrupts them.
    NoRanksError
        The ranks are gone.
    """
    work = _Work(session, session.new_run(title), ranks)
    try:
        with session.idle(ranks):
            work.calls.update(send(work.run))
        work.wait()
    except KeyboardInterrupt:
        raise work.stop() from None
    if work.outcome.errors or work.outcome.diagnosis:
        session.distrust()
    return work.outcome


class _Work:
    def __init__(self, session: Session, run: str, ranks: Sequence[int]) -> None:
        self.run = run
        self.calls: dict[int, Call] = {}
        """Of ranks that have not answered."""
        self.outcome = Outcome()
        self._session = session
        self._ranks = ranks
        self._began = time.monotonic()
        self._answers: dict[int, Answer] = {}
        self._freeing = Freeing(session.listener, run)

    def wait(self) -> None:
        while self.calls:
            next(iter(self.calls.values())).wait(TICK)
            self._collect()
            if self.calls:
                self._session.require_alive()
                self._free()

    def stop(self) -> RanksInterrupted:
        """Interrupt the ranks, and give them time to answer; a second Ctrl-C takes it away."""
        session = self._session
        try:
            session.distrust()
            session.listener.interrupt(self._ranks, self.run)
            deadline = time.monotonic() + INTERRUPT_PATIENCE
            while self.calls and time.monotonic() < deadline:
                next(iter(self.calls.values())).wait(TICK)
                self._collect()
        except KeyboardInterrupt:
            session.listener.interrupt(self.calls, self.run)
        return RanksInterrupted(self._ranks, sorted(self.calls))

    def _collect(self) -> None:
        for rank in [rank for rank, call in self.calls.items() if call.done()]:
            try:
                error, parts = self.calls.pop(rank).result()
            except EngineError as death:
                raise NoRanksError(self._session.death() or str(death)) from None
            self._answers[rank] = Answer(error, time.monotonic())
            if error is not None:
                self.outcome.errors[rank] = error
            elif parts is not None:
                self.outcome.values[rank] = parts

    def _free(self) -> None:
        """Interrupt ranks that wait for ever, as in a cell."""
        session, now = self._session, time.monotonic()
        running = {rank: cell.request.run for rank, cell in session.running().items()}
        running |= dict.fromkeys(self.calls, self.run)
        beats, stacks = session.listener.beats, session.stacks
        states = look(session.ranks, beats, running, self._answers, self.run, now, stacks)
        found = session.explain(states, self._began)
        if found is None:
            return
        self._freeing.free(found, self.calls)
        self.outcome.diagnosis = self._freeing.diagnosis
        self.outcome.freed = self._freeing.ranks
