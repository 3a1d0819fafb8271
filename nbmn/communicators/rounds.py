"""One round of a renewal: what all ranks do together, on the control communicator.

Written as generators that yield what to wait for, so that a wait that is interrupted can go
on later where it was. They are never left half way.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from nbmn.communicators.creation import Nursery
from nbmn.communicators.dummies import join_with_dummies
from nbmn.communicators.errors import BrokenCommunicatorError
from nbmn.communicators.ledger import Ledger, Operation
from nbmn.communicators.link import Link, Uid
from nbmn.communicators.renewal import (
    LinkReport,
    Plan,
    by_link,
    catch_up,
    checksum,
    make_plan,
    outstanding,
)
from nbmn.communicators.runtime import mpi
from nbmn.communicators.waiting import wait

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from mpi4py import MPI

    from nbmn.communicators.background import Worker

Steps = Generator[Callable[[], bool], None, Any]


@dataclass(frozen=True, slots=True)
class Result:
    """What a round has done."""

    lowest: int
    """Ticket with which a rank took part."""
    highest: int
    renewed: bool
    """Something had to be."""


@dataclass
class State:
    """All communicators of this rank."""

    control: MPI.Comm
    nursery: Nursery
    links: MutableMapping[Uid, Link]
    """Those that somebody holds."""
    ledgers: dict[Uid, Ledger] = field(default_factory=dict)
    """All that are not freed."""
    abandoned: list[Any] = field(default_factory=list)
    """Communicators with operations that never end, and their buffers."""

    def reports(self, *, quiet: bool = False) -> list[LinkReport]:
        """Describe all links; local.

        Unless all is ``quiet``, links with a worker are described by what it was given to do.
        """
        return [self._report(uid, ledger, quiet) for uid, ledger in self.ledgers.items()]

    def workers(self) -> dict[Uid, tuple[Link, Worker]]:
        """Return who talks over links in the background, by its first link; local."""
        found = [link for link in list(self.links.values()) if link.worker is not None]
        return {link.uid: (link, link.worker) for link in found if link.worker.uid == link.uid}

    def _report(self, uid: Uid, ledger: Ledger, quiet: bool) -> LinkReport:
        link = self.links.get(uid)
        if link is not None and link.worker is not None and not quiet:
            # The ledger is its thread's. If all ranks began the same, all will end it.
            return LinkReport(uid, True, link.broken is not None, link.worker.started)
        ledger.settle()
        broken = bool(ledger.open) or (link is not None and link.broken is not None)
        count = ledger.begun, ledger.digest, ledger.settled
        return LinkReport(uid, link is not None, broken, *count, *ledger.tallies())

    def adopt(self, uid: Uid) -> Ledger:
        """Take over a communicator that is made; SIGINT must be held back."""
        comm = self.nursery.pending[uid].result()
        del self.nursery.pending[uid]
        ledger = self.ledgers[uid] = Ledger(comm)
        return ledger

    def release(self, uid: Uid) -> None:
        """Free a communicator on which nothing is under way."""
        ledger = self.ledgers.pop(uid)
        ledger.retire()
        ledger.comm.Free()

    def abandon(self, uid: Uid) -> None:
        """Keep what never ends, for ever: MPI may still write to its buffers."""
        ledger = self.ledgers[uid]
        self.abandoned.append((ledger.comm, ledger.open))


def renewal(state: State, ticket: int) -> Steps:
    """Make every live link usable again; returns a Result."""
    MPI = mpi()
    control = state.control
    rank = control.Get_rank()
    reports = state.reports()
    in_order = np.array([checksum(reports, rank)], np.uint64)
    trouble = bool(state.nursery.pending) or any(report.broken for report in reports)
    extremes = np.array([trouble, ticket, -ticket], np.int64)
    yield control.Iallreduce(MPI.IN_PLACE, in_order, MPI.SUM).Test
    yield control.Iallreduce(MPI.IN_PLACE, extremes, MPI.MAX).Test
    tickets = int(-extremes[2]), int(extremes[1])
    if not in_order[0] and not extremes[0]:
        return Result(*tickets, renewed=False)

    yield from _quieten(state)
    yield from _make_usable(state)
    return Result(*tickets, renewed=True)


def _quieten(state: State) -> Steps:
    """Let workers end what all ranks have begun, and stop the others."""
    while True:
        workers = state.workers()
        mine = {
            uid: (worker.started, link.broken is None, worker.idle())
            for uid, (link, worker) in workers.items()
        }
        told = yield from tell(state.control, mine)
        for uid, (link, worker) in workers.items():
            theirs = [told[member].get(uid, (-1, False, True)) for member in uid.members]
            if len({begun for begun, *_ in theirs}) > 1 or not all(good for _, good, _ in theirs):
                link.fail(BrokenCommunicatorError("another rank did not take part"))
                worker.stop()
        if all(idle for theirs in told for *_, idle in theirs.values()):
            return
        until = time.monotonic() + 1e-3
        yield lambda until=until: time.monotonic() > until


def _make_usable(state: State) -> Steps:
    control = state.control
    state.nursery.catch_up((yield from tell(control, state.nursery.begun())))
    for uid in sorted(state.nursery.pending):
        yield state.nursery.pending[uid].test
        state.adopt(uid)

    for ledger in state.ledgers.values():
        yield from _cancel_receives(ledger)
    found = by_link((yield from tell(control, state.reports(quiet=True))))
    plan = make_plan(found)
    failed = yield from _drain(state, plan, found)

    fresh: dict[Uid, MPI.Comm] = {}
    for uid in sorted({*failed, *plan.abandon}):
        if uid in state.ledgers:
            state.abandon(uid)
        if uid not in plan.free:
            fresh[uid] = yield from _replacement(control, uid)
    _carry_out(state, plan, fresh, {*failed, *plan.abandon})


def tell(control: MPI.Comm, what: Any) -> Generator[Callable[[], bool], None, list[Any]]:
    """Return what each rank tells, in rank order."""
    MPI = mpi()
    mine = np.frombuffer(pickle.dumps(what), np.uint8)
    length = np.array([mine.size], np.int64)
    lengths = np.empty(control.Get_size(), np.int64)
    yield control.Iallgather(length, lengths).Test
    everything = np.empty(int(lengths.sum()), np.uint8)
    ends = np.cumsum(lengths)
    counts = (lengths.tolist(), [0, *ends[:-1].tolist()])
    yield control.Iallgatherv(mine, [everything, counts, MPI.BYTE]).Test
    return [pickle.loads(part) for part in np.split(everything, ends[:-1])]


def run(steps: Steps) -> Any:
    """Go through steps that nothing may interrupt half way; returns what they return."""
    while True:
        try:
            wait(next(steps))
        except StopIteration as stop:
            return stop.value


def _cancel_receives(ledger: Ledger) -> Steps:
    """End all receives: what was not matched yet is not received."""
    MPI = mpi()
    for operation in [o for o in ledger.open if o.receives]:
        request, status = operation.requests[0], MPI.Status()
        if request != MPI.REQUEST_NULL:
            request.Cancel()
        yield lambda request=request, status=status: _over(request.Test, status)
        if status.Is_cancelled():
            ledger.open.remove(operation)
        else:
            ledger.close(operation)


def _drain(
    state: State, plan: Plan, found: dict[Uid, dict[int, LinkReport]]
) -> Generator[Callable[[], bool], None, list[Uid]]:
    """Complete all that is under way; returns those where it cannot be."""
    MPI = mpi()
    if not plan.drain:
        return []
    mine = [uid for uid in plan.drain if uid in state.ledgers]
    past = {uid: state.ledgers[uid].since(plan.settled[uid]) for uid in mine}
    told = yield from tell(state.control, past)
    apart: list[Uid] = []
    for uid in plan.drain:
        histories = {here: told[member][uid] for here, member in enumerate(uid.members)}
        rank = state.ledgers[uid].rank if uid in state.ledgers else 0
        joins = catch_up(histories, rank, len(uid.members))
        if joins is None:
            apart.append(uid)
        elif uid in state.ledgers:
            for call in joins:
                join_with_dummies(state.ledgers[uid], call)

    failed = np.array([uid in apart for uid in plan.drain], np.int64)
    for place, uid in enumerate(plan.drain):
        if uid in state.ledgers and uid not in apart:
            ledger = state.ledgers[uid]
            yield from _swallow(ledger, outstanding(uid, found[uid])[ledger.rank])
            for operation in list(ledger.open):
                went_wrong: list[BaseException] = []
                yield lambda o=operation, w=went_wrong: _ended(o, w)
                failed[place] |= bool(went_wrong)
                ledger.close(operation)
    yield state.control.Iallreduce(MPI.IN_PLACE, failed, MPI.MAX).Test
    return [uid for uid, bad in zip(plan.drain, failed, strict=True) if bad]


def _swallow(ledger: Ledger, counts: list[int]) -> Steps:
    """Receive messages that nobody asks for any more, ``counts`` from each rank."""
    MPI = mpi()
    for source, count in enumerate(counts):
        for _ in range(count):
            status, found = MPI.Status(), []

            def probe(source: int = source, status: Any = status, found: list[Any] = found) -> bool:
                message = ledger.comm.Improbe(source, MPI.ANY_TAG, status)
                if message is not None:
                    found.append(message)
                return bool(found)

            yield probe
            waste = np.empty(status.Get_count(MPI.BYTE), np.uint8)
            yield found[0].Irecv([waste, MPI.BYTE]).Test


def _over(test: Callable[..., bool], status: MPI.Status) -> bool:
    """Say whether a receive is complete; one that failed is."""
    try:
        return test(status)
    except mpi().Exception:
        return True


def _ended(operation: Operation, went_wrong: list[BaseException]) -> bool:
    try:
        return operation.test()
    except mpi().Exception as error:
        went_wrong.append(error)
        return True


def _replacement(control: MPI.Comm, uid: Uid) -> Generator[Callable[[], bool], None, Any]:
    """Make a fresh communicator; all world ranks are here for it."""
    MPI = mpi()
    if len(uid.members) == control.Get_size() and uid.members == tuple(range(len(uid.members))):
        comm, request = control.Idup()
        yield request.Test
        return comm
    yield control.Ibarrier().Test
    here = control.Get_rank()
    inside = here in uid.members
    return control.Split(0 if inside else MPI.UNDEFINED, uid.members.index(here) if inside else 0)


def _carry_out(state: State, plan: Plan, fresh: dict[Uid, MPI.Comm], abandoned: set[Uid]) -> None:
    for uid, why in plan.lose.items():
        link = state.links.pop(uid, None)
        if link is not None:
            link.lose(why)
    for uid in plan.free:
        if uid in state.ledgers:
            if uid in abandoned:
                state.ledgers.pop(uid).retire()
            else:
                state.release(uid)
    for uid in plan.drain:
        if uid in state.ledgers:
            ledger = state.ledgers[uid]
            comm = fresh.get(uid, ledger.comm)
            link = state.links.get(uid)
            if link is None:
                ledger.reset(comm)
            else:
                link.renewed(comm)
