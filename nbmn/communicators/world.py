"""All ranks: the control communicator, and the links made from it."""

from __future__ import annotations

import functools
import os
import weakref
from typing import TYPE_CHECKING, Any

from nbmn.communicators import lines, objects, transport
from nbmn.communicators.activity import Activity
from nbmn.communicators.creation import Nursery, members_of
from nbmn.communicators.errors import BrokenCommunicatorError
from nbmn.communicators.interrupts import HeldInterrupt
from nbmn.communicators.link import Link, Uid, code_of
from nbmn.communicators.peers import Peers, introduce
from nbmn.communicators.recorder import Recorder
from nbmn.communicators.renewal import LinkReport, by_link, in_step
from nbmn.communicators.rounds import Result, State, Steps, renewal, run
from nbmn.communicators.runtime import mpi
from nbmn.communicators.waiting import wait

if TYPE_CHECKING:
    from collections.abc import Callable

    from mpi4py import MPI


_IN_FORKS = (
    "MPI does not work in forks; let the rank itself communicate, or start the process by spawn "
    "or forkserver"
)


class World:
    """This process among all ranks; use :func:`world`.

    Only :meth:`renew` talks over the control communicator, and it always finishes what
    it began there, so that all can be put in order whatever happened to the others.
    """

    def __init__(self) -> None:
        control: MPI.Comm = mpi().COMM_WORLD.Dup()
        self.rank: int = control.Get_rank()
        self.size: int = control.Get_size()
        self.recorder = Recorder(self.rank)
        self.track = self.recorder
        self._links: weakref.WeakValueDictionary[Uid, Link] = weakref.WeakValueDictionary()
        self._state = State(control, Nursery(control), self._links)
        self.forsaken = False
        """This process is a fork, and none of the ranks."""
        self._ticket = self._completed = 0
        self._round: Steps | None = None
        self._step: Callable[[], bool] | None = None
        self._everyone = tuple(range(self.size))
        self._peers: Peers = introduce(control, self.recorder)
        self._lines: lines.Lines = run(lines.introduce(control))

    def activity(self) -> Activity | None:
        """Return the collective this rank is in, or None; local, from any thread."""
        return self.recorder.snapshot()

    def links(self) -> list[Link]:
        """Return the links that are held here; local, from any thread."""
        return [link for ref in self._links.valuerefs() if (link := ref()) is not None]

    def begun(self) -> dict[int, int]:
        """Return how many calls this rank has begun on each communicator, by its code; local.

        From any thread. Of one that nobody holds here any more it is still told, until it is freed.
        Of averaging in the background it is what was started, since that goes on by itself.
        """
        state = self._state
        counts = {ledger.code: ledger.recorded for ledger in list(state.ledgers.values())}
        counts |= {code: started for code, (_, started) in self.averagings().items()}
        for members, count in state.nursery.begun().items():
            counts[_creations(members)] = count
        return {code: count for code, count in counts.items() if count}

    def averagings(self) -> dict[int, tuple[tuple[int, ...], int]]:
        """Return whose gradients are averaged in the background, and how often that was started
        here since the last renewal, by a code as in :meth:`begun`; local, from any thread."""
        workers = {link: link.worker for link in self.links()}
        return {
            link.code: (link.members, worker.started)
            for link, worker in workers.items()
            if worker is not None and worker.uid == link.uid
        }

    def creation(self) -> tuple[int, int, tuple[int, ...]]:
        """Return the communicator that was begun last: a code and number as in :meth:`begun`,
        and its ranks; local, from any thread."""
        uid = self._state.nursery.latest
        return (0, 0, ()) if uid is None else (_creations(uid.members), uid.number, uid.members)

    def begin_cell(self) -> None:
        """Count collectives from here on as those of a new cell, where people read it; local."""
        for ledger in list(self._state.ledgers.values()):
            ledger.earlier = ledger.recorded

    @property
    def abandoned(self) -> int:
        """MPI communicators given up because what was begun on them could not be ended; local."""
        return len(self._state.abandoned)

    def in_order(self) -> bool:
        """Say whether nothing that is held here was left in the middle of a call; local."""
        broken = any(link.broken and not link.lost for link in self.links())
        return not broken and not self._state.nursery.pending

    def open_link(self, mpi_comm: MPI.Comm | None, note: Any) -> tuple[Link, list[Any]]:
        """Make a link; collective over the ranks of ``mpi_comm``.

        Parameters
        ----------
        mpi_comm
            Its ranks; None for all. Nothing is sent over it.
        note
            Something to tell the other ranks on this occasion.

        Returns
        -------
        The link, and each rank's note.
        """
        control = self._state.control
        members = self._everyone if mpi_comm is None else members_of(mpi_comm, control)
        return self._open(members, note)

    def split(self, link: Link, color: int | None, key: int) -> Link | None:
        """Make one link per color of the ranks of ``link``; collective over ``link``.

        Returns None where ``color`` is None.
        """
        wishes = objects.allgather(link, (color, key))
        if color is None:
            return None
        chosen = sorted((key, rank) for rank, (theirs, key) in enumerate(wishes) if theirs == color)
        made, _ = self._open(tuple(link.members[rank] for _, rank in chosen), None)
        return made

    def _open(self, members: tuple[int, ...], note: Any) -> tuple[Link, list[Any]]:
        state = self._state
        if state.nursery.pending:
            raise BrokenCommunicatorError(
                f"rank {self.rank}: an earlier creation of a communicator was interrupted; "
                "call nbmn.communicators.world().renew() on all ranks"
            )
        with HeldInterrupt():
            creation = state.nursery.begin(members)
        wait(creation.test)
        with HeldInterrupt():
            ledger = state.adopt(creation.uid)
            ledger.meetings = meetings = self._lines.open()
            link = Link(creation.uid, ledger, self._peers)
            self._links[link.uid] = link
        dead = [report for report in state.reports() if not report.alive]
        said = objects.allgather(link, (note, dead, meetings and meetings.place))
        if self._lines.connect(meetings, members, [place for _, _, place in said]):
            # Whoever is interrupted from here on can join in the meetings of the others.
            transport.barrier(link)
            ledger.meets = True
        self._sweep(members, [theirs for _, theirs, _ in said])
        return link, [theirs for theirs, _, _ in said]

    def _sweep(self, members: tuple[int, ...], dead: list[list[LinkReport]]) -> None:
        """Free what nobody holds any more, when all of its ranks are here to do it alike."""
        by_rank: list[list[LinkReport]] = [[] for _ in self._everyone]
        for member, reports in zip(members, dead, strict=True):
            by_rank[member] = reports
        with HeldInterrupt():
            for uid, at in sorted(by_link(by_rank).items()):
                if self.rank in at and in_step(uid, at):
                    self._state.release(uid)

    def release(self, link: Link) -> None:
        """Give a link up on this rank, as if nobody held it any more; local."""
        if self._links.pop(link.uid, None) is not None:
            link.lose("was finalized")

    def forsake(self) -> None:
        """Let go of all communicators: this process is a fork of the rank; local.

        It has the rank's shared memory, and would take the rank's part with those who wait there.
        """
        self.forsaken = True
        for link in self.links():
            link.lose("is that of the process from which this one was forked", _IN_FORKS)

    def renew(self, ticket: int | None = None) -> bool:
        """Make every live communicator usable again; collective over all ranks.

        What is under way is brought to an end first: ranks that are behind join the
        collectives in which others wait, with data that nobody sees, and messages that
        nobody receives are thrown away. Only where the ranks did not call the same do
        they get a fresh MPI communicator. The objects the user holds stay valid. If all is in
        order on all ranks, this costs two small all-reduces. Ranks may enter at different
        times. An interrupt while it waits raises KeyboardInterrupt, and the next call goes on.

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
            # One that was interrupted goes on: the other ranks may be through with it.
            ticket = self._ticket if self._ticket > self._completed else self._ticket + 1
        elif ticket <= self._completed:
            return False
        self._ticket = ticket
        renewed = False
        with HeldInterrupt() as interrupt:
            while True:
                if self._round is None:
                    self._round = renewal(self._state, self._ticket)
                    self._step = next(self._round)
                result = self._drive(interrupt)
                renewed |= result.renewed
                if result.lowest == result.highest == self._ticket:
                    self._completed = self._ticket
                    return renewed
                self._ticket = max(self._ticket, result.highest)

    def _drive(self, interrupt: HeldInterrupt) -> Result:
        """Run the current round to its end; an interrupt leaves it to be resumed."""
        assert self._round is not None
        while True:
            assert self._step is not None
            wait(functools.partial(interrupt.test, self._step))
            try:
                self._step = next(self._round)
            except StopIteration as stop:
                self._round = self._step = None
                return stop.value
            except BaseException:
                self._round = self._step = None
                raise


def _creations(members: tuple[int, ...]) -> int:
    """Name, as a communicator has a name, what counts those that are made for these ranks."""
    return code_of(Uid(members, 0), 0)  # links are counted from 1


def world() -> World:
    """Return this process's world; collective over all ranks the first time, then local.

    The first call initialises MPI. Without ``mpiexec`` it is a world of one rank.

    Raises
    ------
    RuntimeError
        This process is a fork of one in which that was called.
    """
    if _make.cache_info().currsize:
        made = _make()
        if made.forsaken:
            raise RuntimeError(f"this process was forked from rank {made.rank}: {_IN_FORKS}")
        return made
    with HeldInterrupt():
        return _make()


@functools.cache
def _make() -> World:
    made = World()
    os.register_at_fork(after_in_child=made.forsake)
    return made


def current_activity() -> Activity | None:
    """Return the collective this process is in; None between collectives and before MPI starts.

    Local, from any thread; unlike ``world().activity()`` it never initialises MPI.
    """
    return _make().activity() if _make.cache_info().currsize else None
