"""Makes MPI communicators, in a way that can be interrupted and taken up again.

MPICH hands out no more communicators while one is half made, and what a rank has begun only
the others can complete. So every creation is counted per group of ranks, and the next
renewal brings all of them to an end, with those ranks too that never came to it.
"""

from __future__ import annotations

import _thread
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from nbmn.communicators.link import Uid
from nbmn.communicators.runtime import mpi

if TYPE_CHECKING:
    from mpi4py import MPI

_TAGS = 32768


class Creation:
    """One communicator in the making."""

    def __init__(self, uid: Uid) -> None:
        self.uid = uid
        self._comm: MPI.Comm | None = None
        self._request: MPI.Request | None = None
        self._error: BaseException | None = None

    def duplicate(self, parent: MPI.Comm) -> None:
        """Begin, among all ranks of ``parent``."""
        self._comm, self._request = parent.Idup()

    def group(self, parent: MPI.Comm, ranks: tuple[int, ...]) -> None:
        """Begin, among some ranks of ``parent``."""
        # MPI has only a call that blocks, and does not see SIGINT.
        _thread.start_new_thread(self._make, (parent, ranks))

    def alone(self) -> None:
        """Make it for this rank only."""
        self._comm = mpi().COMM_SELF.Dup()

    def test(self) -> bool:
        """Say whether it is made."""
        if self._request is not None:
            return self._request.Test()
        return self._comm is not None or self._error is not None

    def result(self) -> MPI.Comm:
        """Return it, once it is made."""
        if self._error is not None:
            raise self._error
        assert self._comm is not None
        return self._comm

    def _make(self, parent: MPI.Comm, ranks: tuple[int, ...]) -> None:
        try:
            every = parent.Get_group()
            some = every.Incl(ranks)
            self._comm = parent.Create_group(some, self.uid.number % _TAGS)
            some.Free()
            every.Free()
        except BaseException as error:  # noqa: BLE001 - raised in the main thread
            self._error = error


class Nursery:
    """Where communicators are made; nothing else is done on its own communicator."""

    def __init__(self, control: MPI.Comm) -> None:
        self._comm: MPI.Comm = control.Dup()
        self._rank: int = control.Get_rank()
        self._size: int = control.Get_size()
        self._begun: Counter[tuple[int, ...]] = Counter()
        self.pending: dict[Uid, Creation] = {}
        self.latest: Uid | None = None
        """What was begun last."""

    def begin(self, members: tuple[int, ...]) -> Creation:
        """Begin to make a communicator of these ranks; SIGINT must be held back."""
        self._begun[members] += 1
        creation = Creation(Uid(members, self._begun[members]))
        self.pending[creation.uid] = creation
        self.latest = creation.uid
        if members == (self._rank,):
            creation.alone()
        elif members == tuple(range(self._size)):
            creation.duplicate(self._comm)
        else:
            creation.group(self._comm, members)
        return creation

    def begun(self) -> dict[tuple[int, ...], int]:
        """Return how many communicators this rank has begun to make, by their members."""
        return dict(self._begun)

    def catch_up(self, told: Iterable[dict[tuple[int, ...], int]]) -> None:
        """Begin what other ranks have begun and this one has not."""
        most: Counter[tuple[int, ...]] = Counter()
        for counts in told:
            most |= Counter(counts)
        for members in sorted(most):
            if self._rank in members:
                for _ in range(most[members] - self._begun[members]):
                    self.begin(members)


def members_of(mpi_comm: Any, control: Any) -> tuple[int, ...]:
    """Return the ranks of ``mpi_comm`` as ranks of ``control``, in order; local."""
    MPI = mpi()
    ranks = list(range(mpi_comm.Get_size()))
    return tuple(MPI.Group.Translate_ranks(mpi_comm.Get_group(), ranks, control.Get_group()))
