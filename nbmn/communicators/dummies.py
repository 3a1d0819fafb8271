"""Joins a collective that others wait in, with buffers of the right size and no data."""

from __future__ import annotations

import numpy as np

from nbmn.communicators.calls import Kind, Signature, element, reductions
from nbmn.communicators.ledger import Ledger, Operation


def join_with_dummies(ledger: Ledger, call: Signature) -> Operation:
    """Begin ``call``; what it brings is thrown away."""
    kind, calls = call.kind, ledger.calls
    if kind == Kind.BARRIER:
        return calls.Ibarrier()
    if kind == Kind.MEETING:
        return calls.Imeet(0)
    dtype = element(call.dtype)

    def buffer(count: int) -> np.ndarray:
        return np.zeros(count, dtype)

    def divided(counts: tuple[int, ...]) -> list[object]:
        ends = np.cumsum(counts).tolist()
        return [buffer(ends[-1]), (list(counts), [0, *ends[:-1]])]

    count, root, size = call.count, call.root, ledger.size
    at_root = ledger.rank == root
    if kind == Kind.ALLREDUCE:
        return calls.Iallreduce(buffer(count), buffer(count), reductions()[call.op])
    if kind == Kind.REDUCE:
        into = buffer(count) if at_root else None
        return calls.Ireduce(buffer(count), into, reductions()[call.op], root)
    if kind == Kind.REDUCE_SCATTER:
        op = reductions()[call.op]
        return calls.Ireduce_scatter_block(buffer(count * size), buffer(count), op)
    if kind == Kind.BCAST:
        return calls.Ibcast(buffer(count), root)
    if kind == Kind.ALLGATHER:
        return calls.Iallgather(buffer(count), buffer(count * size))
    if kind == Kind.ALLTOALL:
        return calls.Ialltoall(buffer(count * size), buffer(count * size))
    if kind == Kind.GATHER:
        return calls.Igather(buffer(count), buffer(count * size) if at_root else None, root)
    if kind == Kind.SCATTER:
        return calls.Iscatter(buffer(count * size) if at_root else None, buffer(count), root)
    outgoing, incoming = call.outgoing or (), call.incoming or ()
    if kind == Kind.ALLGATHERV:
        return calls.Iallgatherv(buffer(incoming[ledger.rank]), divided(incoming))
    if kind == Kind.GATHERV:
        into = divided(incoming) if at_root else None
        return calls.Igatherv(buffer(outgoing[0]), into, root)
    if kind == Kind.SCATTERV:
        out_of = divided(outgoing) if at_root else None
        return calls.Iscatterv(out_of, buffer(incoming[0]), root)
    assert kind == Kind.ALLTOALLV, call
    return calls.Ialltoallv(divided(outgoing), divided(incoming))
