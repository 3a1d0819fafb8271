"""All ranks: the control communicator, and the links made from it."""

from __future__ import annotations

import functools
import pickle
import signal
import threading
import weakref
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import numpy as np

from nbmn.communicators import objects
from nbmn.communicators.activity import Activity, ActivityTrack
from nbmn.communicators.errors import BrokenCommunicatorError
from nbmn.communicators.link import Link, Uid
from nbmn.communicators.renewal import LinkReport, Plan, checksum, make_plan
from nbmn.communicators.runtime import mpi
from nbmn.communicators.waiting import wait

if TYPE_CHECKING:
    from mpi4py import MPI

_Steps = Generator["tuple[MPI.Request, Any]", None, tuple[int, int]]


class World:
    """This process among all ranks; use :func:`world`.

    Only :meth:`renew` talks over the control communicator, and it always finishes what
    it began there, so that a fresh duplicate of it can be made whatever happened
    to the others.
    """

    def __init__(self) -> None:
        MPI = mpi()
        self.control: MPI.Comm = MPI.COMM_WORLD.Dup()
        self.rank: int = self.control.Get_rank()
        self.size: int = self.control.Get_size()
        self.track = ActivityTrack()
        self._links: weakref.WeakValueDictionary[Uid, Link] = weakref.WeakValueDictionary()
        self._comms: dict[Uid, tuple[tuple[int, ...], MPI.Comm]] = {}
        self._abandoned: list[Any] = []
        self._made = 0
        self._ticket = self._completed = 0
        self._round: _Steps | None = None
        self._step: tuple[MPI.Request, Any] | None = None
        self._everyone = tuple(range(self.size))
        # New communicators are duplicates of this one. Its only operation is Idup, and one
        # that was interrupted is finished in the next renewal, by all ranks: MPICH
        # hands out no more communicators while one is half made.
        self._nursery: MPI.Comm = self.control.Dup()
        self._creations = 0
        self._unfinished: list[tuple[MPI.Comm, MPI.Request]] = []

    def activity(self) -> Activity | None:
        """Return the collective this rank is in, or None; local, from any thread."""
        return self.track.snapshot()

    def open_link(self, mpi_comm: MPI.Comm | None, note: Any) -> tuple[Link, list[Any]]:
        """Make a link over a duplicate; collective over the ranks of ``mpi_comm``.

        Parameters
        ----------
        mpi_comm
            Its ranks; None for all.
        note
            Something to tell the other ranks on this occasion.

        Returns
        -------
        The link, and each rank's note.
        """
        MPI = mpi()
        alike = (MPI.IDENT, MPI.CONGRUENT)
        if mpi_comm is None or MPI.Comm.Compare(mpi_comm, self.control) in alike:
            members = self._everyone
            comm = self._duplicate()
        else:
            ranks = list(range(mpi_comm.Get_size()))
            group, all_ranks = mpi_comm.Get_group(), self.control.Get_group()
            members = tuple(MPI.Group.Translate_ranks(group, ranks, all_ranks))
            for _ in range(2):
                request = mpi_comm.Ibarrier()
                wait(request.Test)
            comm = mpi_comm.Dup()
        self._made += 1
        draft = Link(Uid(members[0], -1), members, comm, self._abandoned.append)
        dead = [
            uid
            for uid, (_, old) in self._comms.items()
            if uid not in self._links and not self._left_behind(old)
        ]
        said = objects.allgather(draft, (note, self._made, dead))
        self._sweep(members, [their_dead for _, _, their_dead in said])
        draft.uid = Uid(members[0], said[0][1])
        self._register(draft, comm)
        return draft, [their_note for their_note, _, _ in said]

    def split(self, link: Link, color: int | None, key: int) -> Link | None:
        """Make one link per color of the ranks of ``link``; collective over ``link``.

        Returns None where ``color`` is None.
        """
        MPI = mpi()
        # MPI can split only by a blocking call, so everyone is here before it. Twice: who
        # is interrupted in the first barrier keeps the others in the second.
        for _ in range(2):
            link.run(lambda comm: comm.Ibarrier())
        group = link.comm.Split(MPI.UNDEFINED if color is None else color, key)
        if group == MPI.COMM_NULL:
            return None
        made, _ = self.open_link(group, None)
        group.Free()
        return made

    def release(self, link: Link) -> None:
        """Give a link up on this rank, as if nobody held it any more; local."""
        if self._links.pop(link.uid, None) is not None:
            link.lose("was finalized")

    def renew(self, ticket: int | None = None) -> bool:
        """Make every live communicator usable again; collective over all ranks.

        Communicators on which a collective was interrupted, or which the ranks have
        used unequally often, get fresh MPI communicators underneath; the
        objects the user holds stay valid. If all is in order on all ranks, this
        costs one small all-reduce. Ranks may enter at different times. An
        interrupt while it waits raises KeyboardInterrupt, and the next call goes on.

        Parameters
        ----------
        ticket
            The same on all ranks, larger from call to call; tells calls apart when an
            earlier one was interrupted on some ranks and never made on others. A call that was
            interrupted may be repeated with the same ticket, on the interrupted
            ranks only. By default the calls are counted.

        Returns
        -------
        Whether anything had to be renewed.
        """
        if ticket is None:
            ticket = self._ticket + 1
        elif ticket <= self._completed:
            return False
        self._ticket = ticket
        renewed = False
        with _HeldInterrupt() as interrupt:
            while True:
                if self._round is None:
                    self._round = self._renewal(self._ticket)
                    self._step = next(self._round)
                tickets, did = self._drive(interrupt)
                renewed |= did
                if tickets == (self._ticket, self._ticket):
                    self._completed = self._ticket
                    return renewed
                self._ticket = max(self._ticket, tickets[1])

    def _drive(self, interrupt: _HeldInterrupt) -> tuple[tuple[int, int], bool]:
        """Run the current round to its end; an interrupt leaves it to be resumed."""
        assert self._round is not None
        while True:
            assert self._step is not None
            wait(functools.partial(interrupt.test, self._step[0]))
            try:
                self._step = next(self._round)
            except StopIteration as stop:
                self._round = self._step = None
                lowest, highest, did = stop.value
                return (lowest, highest), did

    def _renewal(self, ticket: int) -> Generator[tuple[MPI.Request, Any], None, Any]:
        """Yield requests on the control communicator, each to be completed before the next.

        The place to drain: ranks behind could join what others wait in, before anything
        is abandoned for a fresh duplicate (MPICH has about 2,000 of them).
        """
        MPI = mpi()
        control = self.control
        reports = self._reports()
        in_order = np.array([checksum(reports, self.rank)], np.uint64)
        trouble = bool(self._unfinished) or any(report.broken for report in reports)
        begun = self._creations
        extremes = np.array([trouble, ticket, -ticket, begun, -begun], np.int64)
        yield control.Iallreduce(MPI.IN_PLACE, in_order, MPI.SUM), in_order
        yield control.Iallreduce(MPI.IN_PLACE, extremes, MPI.MAX), extremes
        tickets = (int(-extremes[2]), int(extremes[1]))
        most, least = int(extremes[3]), int(-extremes[4])
        if not in_order[0] and not extremes[0] and most == least:
            return (*tickets, False)

        for _ in range(most - self._creations):
            self._begin_duplicate()
        while self._unfinished:
            yield self._unfinished[0][1], None
            self._unfinished.pop(0)

        mine = np.frombuffer(pickle.dumps(reports), np.uint8)
        lengths = np.empty(self.size, np.int64)
        length = np.array([mine.size], np.int64)
        yield control.Iallgather(length, lengths), (length, lengths)
        everything = np.empty(int(lengths.sum()), np.uint8)
        ends = np.cumsum(lengths)
        counts = (lengths.tolist(), [0, *ends[:-1].tolist()])
        request = control.Iallgatherv(mine, [everything, counts, MPI.BYTE])
        yield request, (mine, everything)
        plan = make_plan([pickle.loads(part) for part in np.split(everything, ends[:-1])])

        fresh: dict[Uid, MPI.Comm] = {}
        for uid in plan.renew:
            members = plan.members[uid]
            if members == self._everyone:
                comm, request = control.Idup()
                yield request, comm
            else:
                yield control.Ibarrier(), None
                inside = self.rank in members
                comm = control.Split(
                    0 if inside else MPI.UNDEFINED, members.index(self.rank) if inside else 0
                )
            fresh[uid] = comm
        self._carry_out(plan, fresh)
        return (*tickets, True)

    def _carry_out(self, plan: Plan, fresh: dict[Uid, MPI.Comm]) -> None:
        for uid in plan.free:
            if uid in self._comms:
                self._comms.pop(uid)[1].Free()
        for uid, why in plan.lose.items():
            self._comms.pop(uid, None)
            link = self._links.pop(uid, None)
            if link is not None:
                link.lose(why)
        for uid, comm in fresh.items():
            if self.rank in plan.members[uid]:
                self._comms[uid] = (plan.members[uid], comm)
                link = self._links.get(uid)
                if link is not None:
                    link.renewed(comm)

    def _reports(self) -> list[LinkReport]:
        reports = []
        for uid, (members, comm) in self._comms.items():
            link = self._links.get(uid)
            if link is None:
                abandoned = self._left_behind(comm)
                reports.append(LinkReport(uid, members, alive=False, abandoned=abandoned))
            else:
                reports.append(
                    LinkReport(
                        uid,
                        members,
                        alive=True,
                        broken=link.dirty,
                        abandoned=link.abandoned,
                        sequence=link.sequence,
                        messages=tuple(link.messages.items()),
                    )
                )
        return reports

    def _left_behind(self, comm: MPI.Comm) -> bool:
        return any(held is comm for held, _ in self._abandoned)

    def _sweep(self, members: tuple[int, ...], dead: list[list[Uid]]) -> None:
        """Free what nobody holds any more, when all ranks are here to do it alike."""
        if members != self._everyone:
            return
        for uid in sorted(set(dead[0]).intersection(*dead)):
            self._comms.pop(uid)[1].Free()

    def _duplicate(self) -> MPI.Comm:
        """Make a communicator of all ranks; collective."""
        if self._unfinished:
            raise BrokenCommunicatorError(
                f"rank {self.rank}: an earlier create_communicator was interrupted; "
                "call nbmn.communicators.world().renew() on all ranks"
            )
        with _HeldInterrupt():
            self._begin_duplicate()
        fresh, request = self._unfinished[0]
        wait(request.Test)
        self._unfinished.clear()
        return fresh

    def _begin_duplicate(self) -> None:
        self._creations += 1
        self._unfinished.append(self._nursery.Idup())

    def _register(self, link: Link, comm: MPI.Comm) -> None:
        self._links[link.uid] = link
        self._comms[link.uid] = (link.members, comm)


class _HeldInterrupt:
    """Holds SIGINT back, so that it is seen only where the renewal waits.

    A KeyboardInterrupt raised in the midst of the renewal's own steps would lose
    track of how far this rank is, and no later renewal could succeed.
    """

    def __init__(self) -> None:
        self.seen = False
        self._previous: Any = None

    def __enter__(self) -> _HeldInterrupt:
        # Elsewhere than in the main thread Python raises no KeyboardInterrupt; and a
        # handler not set from Python (None) could not be put back.
        main = threading.current_thread() is threading.main_thread()
        if main and signal.getsignal(signal.SIGINT) is not None:
            self._previous = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, kind: object, *details: object) -> None:
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)
        if self.seen and kind is None:
            raise KeyboardInterrupt

    def test(self, request: MPI.Request) -> bool:
        """Test a request, or raise the KeyboardInterrupt that was held back."""
        if self.seen:
            self.seen = False
            raise KeyboardInterrupt
        return request.Test()

    def _note(self, *_: object) -> None:
        self.seen = True


@functools.cache
def world() -> World:
    """Return this process's world; collective over all ranks the first time, then local.

    The first call initialises MPI. Without ``mpiexec`` it is a world of one rank.
    """
    return World()


def current_activity() -> Activity | None:
    """Return the collective this process is in; None between collectives and before MPI starts.

    Local, from any thread; unlike ``world().activity()`` it never initialises MPI.
    """
    return world().activity() if world.cache_info().currsize else None
