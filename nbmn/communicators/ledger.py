"""What this rank has begun on one MPI communicator, and how much of it is over.

Kept so that nothing is lost track of wherever a KeyboardInterrupt strikes, and a
renewal can bring everything that is under way to an end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import starmap
from typing import TYPE_CHECKING, Any, NamedTuple

from nbmn.communicators.calls import Calls, Signature
from nbmn.communicators.meetings import Meeting

if TYPE_CHECKING:
    from mpi4py import MPI

    from nbmn.communicators.meetings import Meetings

HISTORY = 1024
"""Collectives remembered; ranks further apart than this cannot catch up."""


class Past(NamedTuple):
    """A collective that was begun."""

    number: int
    """Counted from 1, from one renewal to the next."""
    signature: Signature
    digest: int
    """Of this and all before it, in what must be alike on all ranks."""


class Operation:
    """An operation under way; owns its buffers until MPI is done with them."""

    __slots__ = ("args", "done", "keep", "past", "peer", "receives", "requests")

    def __init__(self, args: tuple[Any, ...]) -> None:
        self.args = args
        self.keep: tuple[Any, ...] = ()
        self.requests: list[MPI.Request] = []
        self.past: Past | None = None
        self.peer = -1
        self.receives = False
        self.done = False

    def test(self) -> bool:
        """Make progress; say whether it is complete on this rank."""
        return self.requests[0].Test()


class Ledger:
    """The operations of this rank on one MPI communicator.

    The order of its steps matters: CPython raises KeyboardInterrupt only after calls
    return and when functions begin, so a request is noted by the very C call that
    makes it, and stores in a row without calls between them happen together.
    """

    def __init__(self, comm: MPI.Comm) -> None:
        self.comm = comm
        self.rank: int = comm.Get_rank()
        self.size: int = comm.Get_size()
        self.calls = Calls(self)
        self.open: list[Operation] = []
        self.history: deque[Past] = deque(maxlen=HISTORY)
        self.sent = [0] * self.size
        self.received = [0] * self.size
        self.meetings: Meetings | None = None
        """In memory that all ranks share; None where they have none."""
        self.meets = False
        """All ranks can meet there."""
        self.traffic = 0
        self.steps = 0
        self.code = 0
        """Names the communicator for the recorder; it outlives the link, as what follows does."""
        self.recorded = 0
        """Collectives of the user's since the last renewal."""
        self.earlier = 0
        """Of these, those begun before the cell that runs."""

    @property
    def begun(self) -> int:
        """Collectives begun since the last renewal."""
        return self.history[-1].number if self.history else 0

    @property
    def digest(self) -> int:
        """Of all collectives begun since the last renewal."""
        return self.history[-1].digest if self.history else 0

    @property
    def settled(self) -> int:
        """How many collectives, from the first, are complete on this rank."""
        pending = [o.past.number for o in self.open if o.past is not None and not o.done]
        return min(pending) - 1 if pending else self.begun

    def begin(
        self, signature: Signature, method: Callable[..., Any], args: tuple[Any, ...]
    ) -> Operation:
        """Begin a collective."""
        operation = Operation(args)
        number, digest = self.begun + 1, _mix(self.digest, signature)
        operation.past = Past(number, signature, digest)
        self.traffic += signature.nbytes
        self.steps += 1
        self.open.append(operation)
        self.history.append(operation.past)
        operation.requests.extend(starmap(method, (args,)))
        return operation

    def exchange(
        self, method: Callable[..., Any], args: tuple[Any, ...], peer: int, *, receives: bool
    ) -> Operation:
        """Begin to send to ``peer``, or to receive from it."""
        operation = Operation(args)
        self.traffic += getattr(args[0], "nbytes", 0)
        operation.peer, operation.receives = peer, receives
        self.steps += 1
        self.open.append(operation)
        operation.requests.extend(starmap(method, (args,)))
        return operation

    def close(self, operation: Operation) -> None:
        """Strike off an operation that is complete."""
        if operation.done:
            return
        if operation.peer >= 0:
            # Together, see above.
            (self.received if operation.receives else self.sent)[operation.peer] += 1
            operation.done = True
        operation.done = True
        self.open.remove(operation)

    def settle(self) -> None:
        """Forget what an interrupt kept from being begun, or from being struck off."""
        for operation in self.open:
            begun = bool(operation.requests)
            if not begun and self.history and self.history[-1] is operation.past:
                self.history.pop()
        self.open = [o for o in self.open if o.requests and not o.done]
        if self.meetings is not None:
            requests = (operation.requests[0] for operation in self.open)
            self.meetings.settle(one for one in requests if isinstance(one, Meeting))

    def tallies(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return how many messages this rank sent to, and received from, each rank."""
        sent = list(self.sent)
        for operation in self.open:
            if operation.peer >= 0 and not operation.receives and operation.requests:
                sent[operation.peer] += not operation.done
        return tuple(sent), tuple(self.received)

    def since(self, number: int) -> list[Past] | None:
        """Return the collectives from ``number`` on; None if they are forgotten."""
        found = [past for past in self.history if past.number >= number]
        expected = self.begun - max(number, 1) + 1
        return found if len(found) == max(expected, 0) else None

    def reset(self, comm: MPI.Comm) -> None:
        """Begin anew, on a communicator with nothing outstanding."""
        if comm is not self.comm:
            self.comm = comm
            self.calls = Calls(self)
        self.open = []
        self.history.clear()
        self.recorded = self.earlier = 0
        self.sent = [0] * self.size
        self.received = [0] * self.size
        if self.meetings is not None:
            self.meetings.reset()

    def retire(self) -> None:
        """Give back what belongs to the communicator, when nothing is under way on it."""
        if self.meetings is not None:
            self.meetings.close()
            self.meetings = None
        self.meets = False


def _mix(digest: int, signature: Signature) -> int:
    # Of integers only: the hash of a string differs from process to process.
    return hash((digest, *signature[:5]))
