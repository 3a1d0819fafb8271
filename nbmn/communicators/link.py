"""A renewable hold on one MPI communicator."""

from __future__ import annotations

import struct
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from nbmn.communicators.errors import (
    BrokenCommunicatorError,
    CollectiveTimeoutError,
    MismatchError,
)
from nbmn.communicators.ledger import Ledger, Operation
from nbmn.communicators.waiting import wait

if TYPE_CHECKING:
    from mpi4py import MPI

    from nbmn.communicators.background import Worker
    from nbmn.communicators.peers import Peers

_LOOK = 1.0  # seconds between looks at whether it is any use to wait on
_LINGER = 1.5 * _LOOK  # so that the other ranks see this one wait too

Pending = Operation


class Uid(NamedTuple):
    """Names a link alike on all its ranks."""

    members: tuple[int, ...]
    """World ranks, in the link's rank order."""
    number: int
    """Counts the links made for these members."""


class Link:
    """One group of ranks that talk over one MPI communicator, replaced if it must be.

    Everything that must survive a renewal refers to the link, never to its MPI
    communicator. ``generation`` counts renewals: what was built for an older one
    must be built again.

    Parameters
    ----------
    peers
        Knows, for the error of a wait that took too long, where the other ranks are.
    """

    def __init__(self, uid: Uid, ledger: Ledger, peers: Peers | None = None) -> None:
        self.uid = uid
        self.members = uid.members
        self.ledger = ledger
        self.rank = ledger.rank
        self.size = ledger.size
        self.timeout: float | None = None
        self.verify = False
        self.generation = 0
        ledger.code = code_of(uid, 0)
        self.broken: str | None = None
        self.lost = False
        self._remedy = (
            "renew it: nbmn.communicators.world().renew() on all ranks "
            "(in a notebook this happens before the next cell)"
        )
        self.worker: Worker | None = None
        """Whose thread talks over this link while it is not idle."""
        self._peers = peers

    @property
    def comm(self) -> MPI.Comm:
        """The MPI communicator of this generation.

        Raises
        ------
        BrokenCommunicatorError
            A collective on it was left before it was complete.
        """
        if self.broken is not None:
            raise self._unusable()
        return self.ledger.comm

    @property
    def code(self) -> int:
        """32 bits that name this link alike on all its ranks, in this generation."""
        return self.ledger.code

    @property
    def calls(self) -> int:
        """Collectives of the user's that this rank has begun since the last renewal."""
        return self.ledger.recorded

    @property
    def dirty(self) -> str | None:
        """How it broke, or None."""
        return self.broken

    @property
    def sequence(self) -> int:
        """Collectives of MPI that this rank has begun since the last renewal."""
        return self.ledger.begun

    def start(self, begin: Callable[[Any], Any], *buffers: Any) -> Operation:
        """Begin a non-blocking collective; ``buffers`` live until it is complete.

        ``begin`` gets what has the methods of an MPI communicator, and calls one.
        """
        if self.broken is not None:
            raise self._unusable()
        ledger = self.ledger
        try:
            begin(ledger.calls)
        except BaseException as error:
            self.fail(error)
            raise
        operation = ledger.open[-1]
        operation.keep = buffers
        return operation

    def finish(self, operation: Operation) -> None:
        """Wait until a started operation is complete on this rank."""
        what = f"rank {operation.peer}" if operation.peer >= 0 else "the other ranks"
        try:
            self.wait(operation.test, what)
        except BaseException as error:
            self.fail(error)
            raise
        self.ledger.close(operation)

    def departed(self) -> str | None:
        """Say which ranks of this host left the collective that this rank is in, before it was
        complete; local, None where none is known to have."""
        if self._peers is None or self.worker is not None:
            return None
        return self._peers.departed(self)

    def wait(
        self,
        test: Callable[[], bool],
        what: str,
        nap: Callable[[float], object] = time.sleep,
    ) -> None:
        """Wait within the timeout; what is begun meanwhile is the caller's to finish.

        Parameters
        ----------
        nap
            As for :func:`~nbmn.communicators.waiting.wait`.

        Raises
        ------
        CollectiveTimeoutError
            It says whom this rank waited for, and where that is. Before the timeout: ranks wait
            for each other's messages, and none of these can ever come.
        """
        worker = self.worker
        if worker is not None:
            # What is recorded of a rank is what its main thread does, not a worker's.
            wait(partial(worker.test, test), self.timeout, what, nap)
            return
        if self._peers is None:
            wait(test, self.timeout, what, nap)
            return
        left = float("inf") if self.timeout is None else self.timeout
        why: str | None = None
        while True:
            patience = min(left, _LOOK if why is None else _LINGER)
            try:
                wait(test, patience, what, nap)
            except CollectiveTimeoutError:
                left -= patience
            else:
                return
            if why is None and left <= 0:
                why = f"waited {self.timeout:g} s for {what}: {self._peers.explain(self)}"
            if why is not None:
                raise CollectiveTimeoutError(f"rank {self.rank} {why}")
            self._peers.answer()
            why = self._peers.deadlock(self)

    @contextmanager
    def patience(self, seconds: float) -> Iterator[None]:
        """While it is entered, wait so long for the other ranks, who have something to do first."""
        before, self.timeout = self.timeout, seconds
        try:
            yield
        finally:
            self.timeout = before

    def run(self, begin: Callable[[Any], Any], *buffers: Any) -> None:
        """Run one collective."""
        self.finish(self.start(begin, *buffers))

    def send(self, begin: Callable[[MPI.Comm], MPI.Request], dest: int, *buffers: Any) -> None:
        """Run one send; counted, so that a message never received is noticed at renewal."""
        self._message(begin, dest, buffers, receives=False)

    def receive(self, begin: Callable[[MPI.Comm], MPI.Request], source: int, *buffers: Any) -> None:
        """Run one receive."""
        self._message(begin, source, buffers, receives=True)

    def renewed(self, comm: MPI.Comm) -> None:
        """Take an MPI communicator with nothing outstanding; the link is as new."""
        self.ledger.reset(comm)
        self.broken = None
        self.generation += 1
        self.ledger.code = code_of(self.uid, self.generation)
        if self.worker is not None and self.worker.uid == self.uid:
            self.worker.reset()

    def fail(self, error: BaseException) -> None:
        """Break because of an error, here or in what belongs together with this link."""
        if self.broken is None:
            self.broken = _cause(error)

    def lose(self, why: str, remedy: str = "create it again on all ranks") -> None:
        """Break for good: some of its ranks no longer hold it."""
        self.broken = why
        self.lost = True
        self._remedy = remedy

    def _message(
        self,
        begin: Callable[[MPI.Comm], MPI.Request],
        peer: int,
        buffers: tuple[Any, ...],
        *,
        receives: bool,
    ) -> None:
        if not 0 <= peer < self.size:
            raise MismatchError(f"rank {self.rank}: no rank {peer}, there are {self.size}")
        comm = self.comm
        try:
            calls = _Messages(self.ledger, comm, peer, receives)
            begin(calls)
        except BaseException as error:
            self.fail(error)
            raise
        operation = self.ledger.open[-1]
        operation.keep = buffers
        self.finish(operation)

    def _unusable(self) -> BrokenCommunicatorError:
        return BrokenCommunicatorError(
            f"rank {self.rank}: this communicator {self.broken}; {self._remedy}"
        )


def code_of(uid: Uid, generation: int) -> int:
    """Return 32 bits that name a link alike on all its ranks, in one generation."""
    numbers = (*uid.members, uid.number, generation)
    return zlib.crc32(struct.pack(f"<{len(numbers)}q", *numbers))


class _Messages:
    """Stands for the MPI communicator where a message is begun."""

    __slots__ = ("_comm", "_ledger", "_peer", "_receives")

    def __init__(self, ledger: Ledger, comm: MPI.Comm, peer: int, receives: bool) -> None:
        self._ledger = ledger
        self._comm = comm
        self._peer = peer
        self._receives = receives

    def __getattr__(self, name: str) -> Callable[..., Operation]:
        method = getattr(self._comm, name)

        def call(*args: Any) -> Operation:
            return self._ledger.exchange(method, args, self._peer, receives=self._receives)

        return call


def _cause(error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt):
        return "was interrupted while it waited for the other ranks"
    return f"failed ({type(error).__name__}: {error})"
