"""MPI's non-blocking calls, with a note of each, so that another rank could join in it.

A rank that comes to a renewal behind the others must still take part in what they wait for. It
has no data for that, and needs none: it joins with dummy buffers of the right size.
What it has to know about the call is its :class:`Signature`.
"""

from __future__ import annotations

import functools
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from nbmn.communicators.meetings import Meeting
from nbmn.communicators.runtime import mpi

if TYPE_CHECKING:
    from nbmn.communicators.ledger import Ledger

UNKNOWN = -1


class Kind(IntEnum):
    """A collective of MPI, by the way in which it can be joined."""

    OTHER = 0
    BARRIER = 1
    ALLREDUCE = 2
    REDUCE = 3
    BCAST = 4
    ALLGATHER = 5
    ALLGATHERV = 6
    GATHER = 7
    GATHERV = 8
    SCATTER = 9
    SCATTERV = 10
    ALLTOALL = 11
    ALLTOALLV = 12
    REDUCE_SCATTER = 13
    MEETING = 14
    """Not of MPI, but begun and ended like one: see :mod:`~nbmn.communicators.meetings`."""


class Signature(NamedTuple):
    """One collective as one rank began it."""

    kind: int
    dtype: int = UNKNOWN
    """NumPy's number of the element type."""
    count: int = UNKNOWN
    """Elements, where they are the same on all ranks; per rank where they are divided."""
    root: int = UNKNOWN
    op: int = UNKNOWN
    """Place of the reduction in ``reductions()``."""
    outgoing: tuple[int, ...] | None = None
    """Elements this rank gives, to each rank or in all."""
    incoming: tuple[int, ...] | None = None
    """Elements this rank gets from each rank."""

    @property
    def nbytes(self) -> int:
        """Bytes in this rank's buffer."""
        if self.dtype == UNKNOWN:
            return 0
        size = element(self.dtype).itemsize
        parts = self.incoming or self.outgoing or (max(self.count, 0),)
        return size * sum(parts)


def element(number: int) -> np.dtype:
    """Return the dtype with NumPy's number."""
    return _elements()[number]


@functools.cache
def _elements() -> dict[int, np.dtype]:
    return {np.dtype(char).num: np.dtype(char) for char in "?bhilqBHILQefdgFDG"}


def reductions() -> list[Any]:
    """Return MPI's own reductions, in an order that all ranks share."""
    MPI = mpi()
    return [
        *(MPI.SUM, MPI.MAX, MPI.MIN, MPI.PROD),
        *(MPI.LAND, MPI.BAND, MPI.LOR, MPI.BOR, MPI.LXOR, MPI.BXOR, MPI.MAXLOC, MPI.MINLOC),
    ]


class Calls:
    """Stands for an MPI communicator where a link begins an operation.

    Takes mpi4py's arguments. Calls it does not know by name go through as they are, and
    cannot be joined.
    """

    __slots__ = ("_comm", "_ledger", "_ops", "_place")

    def __init__(self, ledger: Ledger) -> None:
        MPI = mpi()
        self._ledger = ledger
        self._comm = ledger.comm
        self._place = MPI.IN_PLACE
        self._ops = {op.handle: number for number, op in enumerate(reductions())}

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._comm, name)

        def call(*args: Any) -> Any:
            return self._ledger.begin(Signature(Kind.OTHER), method, args)

        return call

    def Ibarrier(self) -> Any:
        return self._ledger.begin(_BARRIER, self._comm.Ibarrier, ())

    def Imeet(self, word: int) -> Any:
        return self._ledger.begin(_MEETING, Meeting, (self._ledger.meetings, word))

    def Iallreduce(self, sendbuf: Any, recvbuf: Any, op: Any = None) -> Any:
        args = (sendbuf, recvbuf, op or mpi().SUM)
        dtype, count, _ = _extent(recvbuf)
        signature = self._reduction(Kind.ALLREDUCE, dtype, count, args[2], UNKNOWN)
        return self._ledger.begin(signature, self._comm.Iallreduce, args)

    def Ireduce(self, sendbuf: Any, recvbuf: Any, op: Any = None, root: int = 0) -> Any:
        args = (sendbuf, recvbuf, op or mpi().SUM, root)
        dtype, count, _ = _extent(recvbuf if sendbuf is self._place else sendbuf)
        signature = self._reduction(Kind.REDUCE, dtype, count, args[2], root)
        return self._ledger.begin(signature, self._comm.Ireduce, args)

    def Ireduce_scatter_block(self, sendbuf: Any, recvbuf: Any, op: Any = None) -> Any:
        args = (sendbuf, recvbuf, op or mpi().SUM)
        dtype, count, _ = _extent(recvbuf)
        if sendbuf is self._place:
            count //= self._ledger.size
        signature = self._reduction(Kind.REDUCE_SCATTER, dtype, count, args[2], UNKNOWN)
        return self._ledger.begin(signature, self._comm.Ireduce_scatter_block, args)

    def Ibcast(self, buf: Any, root: int = 0) -> Any:
        dtype, count, _ = _extent(buf)
        signature = Signature(_known(Kind.BCAST, dtype), dtype, count, root)
        return self._ledger.begin(signature, self._comm.Ibcast, (buf, root))

    def Iallgather(self, sendbuf: Any, recvbuf: Any) -> Any:
        dtype, count, _ = _extent(recvbuf)
        signature = Signature(_known(Kind.ALLGATHER, dtype), dtype, count // self._ledger.size)
        return self._ledger.begin(signature, self._comm.Iallgather, (sendbuf, recvbuf))

    def Iallgatherv(self, sendbuf: Any, recvbuf: Any) -> Any:
        dtype, _, counts = _extent(recvbuf)
        kind = _known(Kind.ALLGATHERV, dtype if counts else UNKNOWN)
        signature = Signature(kind, dtype, incoming=counts)
        return self._ledger.begin(signature, self._comm.Iallgatherv, (sendbuf, recvbuf))

    def Igather(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> Any:
        dtype, count, _ = _extent(recvbuf if sendbuf is self._place else sendbuf)
        if sendbuf is self._place:
            count //= self._ledger.size
        signature = Signature(_known(Kind.GATHER, dtype), dtype, count, root)
        return self._ledger.begin(signature, self._comm.Igather, (sendbuf, recvbuf, root))

    def Igatherv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> Any:
        counts = None
        dtype, count, _ = _extent(sendbuf)
        if self._ledger.rank == root:
            dtype, _, counts = _extent(recvbuf)
            count = counts[root] if counts else UNKNOWN
        kind = _known(Kind.GATHERV, dtype if count >= 0 else UNKNOWN)
        signature = Signature(kind, dtype, root=root, outgoing=(count,), incoming=counts)
        return self._ledger.begin(signature, self._comm.Igatherv, (sendbuf, recvbuf, root))

    def Iscatter(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> Any:
        dtype, count, _ = _extent(sendbuf if recvbuf is self._place else recvbuf)
        if recvbuf is self._place:
            count //= self._ledger.size
        signature = Signature(_known(Kind.SCATTER, dtype), dtype, count, root)
        return self._ledger.begin(signature, self._comm.Iscatter, (sendbuf, recvbuf, root))

    def Iscatterv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> Any:
        counts = None
        dtype, count, _ = _extent(recvbuf)
        if self._ledger.rank == root:
            dtype, _, counts = _extent(sendbuf)
            count = counts[root] if counts else UNKNOWN
        kind = _known(Kind.SCATTERV, dtype if count >= 0 else UNKNOWN)
        signature = Signature(kind, dtype, root=root, outgoing=counts, incoming=(count,))
        return self._ledger.begin(signature, self._comm.Iscatterv, (sendbuf, recvbuf, root))

    def Ialltoall(self, sendbuf: Any, recvbuf: Any) -> Any:
        dtype, count, _ = _extent(recvbuf)
        signature = Signature(_known(Kind.ALLTOALL, dtype), dtype, count // self._ledger.size)
        return self._ledger.begin(signature, self._comm.Ialltoall, (sendbuf, recvbuf))

    def Ialltoallv(self, sendbuf: Any, recvbuf: Any) -> Any:
        dtype, _, incoming = _extent(recvbuf)
        outgoing = incoming if sendbuf is self._place else _extent(sendbuf)[2]
        kind = _known(Kind.ALLTOALLV, dtype if incoming and outgoing else UNKNOWN)
        signature = Signature(kind, dtype, outgoing=outgoing, incoming=incoming)
        return self._ledger.begin(signature, self._comm.Ialltoallv, (sendbuf, recvbuf))

    def _reduction(self, kind: Kind, dtype: int, count: int, op: Any, root: int) -> Signature:
        number = self._ops.get(op.handle, UNKNOWN)
        return Signature(
            _known(kind, dtype if number >= 0 else UNKNOWN), dtype, count, root, number
        )


_BARRIER = Signature(Kind.BARRIER)
_MEETING = Signature(Kind.MEETING)


def _known(kind: Kind, dtype: int) -> Kind:
    return kind if dtype != UNKNOWN else Kind.OTHER


def _extent(spec: Any) -> tuple[int, int, tuple[int, ...] | None]:
    """Return the element type, count and counts per rank of one of mpi4py's buffer specifications.

    Of what cannot be understood the element type is unknown.
    """
    if type(spec) is np.ndarray:
        return _number(spec.dtype), spec.size, None
    if spec is None:
        return UNKNOWN, UNKNOWN, None
    if isinstance(spec, (list, tuple)):
        array, *rest = spec
        counts = None
        for part in rest:
            if isinstance(part, (list, tuple, np.ndarray)):
                first = part[0] if len(part) else None
                flat = first if isinstance(first, (list, tuple, np.ndarray)) else part
                counts = tuple(int(n) for n in flat)
                break
        if type(array) is np.ndarray and not (rest and _differs(rest[-1], array)):
            return _number(array.dtype), array.size, counts
        return UNKNOWN, UNKNOWN, counts
    return UNKNOWN, UNKNOWN, None


def _number(dtype: np.dtype) -> int:
    return dtype.num if dtype.num in _elements() else UNKNOWN


def _differs(datatype: Any, array: np.ndarray) -> bool:
    """Say whether an MPI datatype is given that is not the array's own."""
    size = getattr(datatype, "size", None)
    is_datatype = size is not None and not isinstance(datatype, np.ndarray)
    return is_datatype and size != array.dtype.itemsize
