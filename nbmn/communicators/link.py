"""A renewable hold on one MPI communicator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from nbmn.communicators.errors import BrokenCommunicatorError, MismatchError
from nbmn.communicators.waiting import wait

if TYPE_CHECKING:
    from mpi4py import MPI


class Uid(NamedTuple):
    """Names a link alike on all its ranks."""

    leader: int
    """World rank of its rank 0."""
    number: int
    """Counted by the leader."""


class Pending:
    """An operation under way; owns its buffers until MPI is done with them."""

    __slots__ = ("buffers", "request")

    def __init__(self, buffers: tuple[Any, ...]) -> None:
        self.buffers = buffers
        self.request: MPI.Request | None = None


class Link:
    """One group of ranks that talk over one MPI communicator, replaced when it breaks.

    Everything that must survive a renewal refers to the link, never to its MPI
    communicator. ``generation`` counts renewals: what was built for an older one
    (buffers, windows) must be built again.
    """

    def __init__(
        self, uid: Uid, members: tuple[int, ...], comm: MPI.Comm, abandon: Callable[[Any], None]
    ) -> None:
        self.uid = uid
        self.members = members
        self.rank: int = comm.Get_rank()
        self.size: int = comm.Get_size()
        self.timeout: float | None = None
        self.generation = 0
        self.broken: str | None = None
        self.lost = False
        self.abandoned = False
        self.sequence = 0
        self.messages: Counter[tuple[int, int]] = Counter()
        self._comm = comm
        self._abandon = abandon
        self._pending: list[Pending] = []

    @property
    def comm(self) -> MPI.Comm:
        """The MPI communicator of this generation.

        Raises
        ------
        BrokenCommunicatorError
            A collective on it was left before it was complete.
        """
        if self.dirty is not None:
            remedy = (
                "create it again on all ranks"
                if self.lost
                else "renew it: nbmn.communicators.world().renew() on all ranks "
                "(in a notebook this happens before the next cell)"
            )
            raise BrokenCommunicatorError(
                f"rank {self.rank}: this communicator {self.broken}; {remedy}"
            )
        return self._comm

    @property
    def dirty(self) -> str | None:
        """How it broke, or None."""
        if self._pending and self.broken is None:
            self._break("was interrupted between two steps of a collective")
        return self.broken

    def start(self, begin: Callable[[MPI.Comm], MPI.Request], *buffers: Any) -> Pending:
        """Begin a non-blocking collective; ``buffers`` live until it is complete."""
        comm = self.comm
        self.sequence += 1
        return self._begin(comm, begin, buffers)

    def finish(self, pending: Pending) -> None:
        """Wait until a started operation is complete on this rank."""
        self._wait(pending)

    def run(self, begin: Callable[[MPI.Comm], MPI.Request], *buffers: Any) -> None:
        """Run one collective."""
        self.finish(self.start(begin, *buffers))

    def send(self, begin: Callable[[MPI.Comm], MPI.Request], dest: int, *buffers: Any) -> None:
        """Run one send; counted, so that a message never received is noticed at renewal."""
        self._check_peer(dest)
        comm = self.comm
        self.messages[self.rank, dest] += 1
        self._wait(self._begin(comm, begin, buffers))

    def receive(self, begin: Callable[[MPI.Comm], MPI.Request], source: int, *buffers: Any) -> None:
        """Run one receive."""
        self._check_peer(source)
        self._wait(self._begin(self.comm, begin, buffers))
        self.messages[source, self.rank] -= 1

    def renewed(self, comm: MPI.Comm) -> None:
        """Take a fresh MPI communicator; the link is as new."""
        self._comm = comm
        self._pending = []
        self.broken = None
        self.abandoned = False
        self.sequence = 0
        self.messages.clear()
        self.generation += 1

    def fail(self, error: BaseException) -> None:
        """Break because of an error elsewhere, in what belongs together with this link."""
        if self.broken is None:
            self._break(_cause(error))

    def lose(self, why: str) -> None:
        """Break for good: some of its ranks no longer hold it."""
        self.broken = why
        self.lost = True

    def _check_peer(self, peer: int) -> None:
        if not 0 <= peer < self.size:
            raise MismatchError(f"rank {self.rank}: no rank {peer}, there are {self.size}")

    def _begin(
        self, comm: MPI.Comm, begin: Callable[[MPI.Comm], MPI.Request], buffers: tuple[Any, ...]
    ) -> Pending:
        # Listed before MPI learns of the buffers: an interrupt that lands between the
        # call and the assignment must not free memory that MPI still writes to.
        pending = Pending(buffers)
        self._pending.append(pending)
        try:
            pending.request = begin(comm)
        except BaseException as error:
            self._break(_cause(error))
            raise
        return pending

    def _wait(self, pending: Pending) -> None:
        assert pending.request is not None
        try:
            wait(pending.request.Test, self.timeout)
        except BaseException as error:
            self._break(_cause(error))
            raise
        self._pending.remove(pending)

    def _break(self, why: str) -> None:
        self.broken = why
        if self._pending:
            self.abandoned = True
            self._abandon((self._comm, self._pending))
            self._pending = []


def _cause(error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt):
        return "was interrupted while it waited for the other ranks"
    return f"failed ({type(error).__name__}: {error})"
