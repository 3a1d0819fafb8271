"""Decides how a rank that is behind joins a collective: pure functions on signatures."""

from __future__ import annotations

from collections.abc import Mapping

from nbmn.communicators.calls import Kind, Signature


def join(theirs: Mapping[int, Signature], rank: int, size: int) -> Signature | None:
    """Return the call by which ``rank`` can join what others began.

    Parameters
    ----------
    theirs
        The signature of each rank that began it; at least one.
    rank, size
        Who joins, among how many.

    Returns
    -------
    None if it cannot be joined, or the calls do not fit together.
    """
    first = next(iter(theirs.values()))
    if first.kind == Kind.OTHER or not fit(theirs):
        return None
    head = Signature(*first[:5])
    kind, root = first.kind, first.root
    if kind == Kind.ALLGATHERV:
        return head._replace(incoming=first.incoming)
    if kind == Kind.GATHERV:
        counts = _filled({r: s.outgoing[0] for r, s in theirs.items() if s.outgoing}, size)
        if root in theirs:
            counts = theirs[root].incoming or counts
        return head._replace(outgoing=(counts[rank],), incoming=counts if rank == root else None)
    if kind == Kind.SCATTERV:
        counts = _filled({r: s.incoming[0] for r, s in theirs.items() if s.incoming}, size)
        if root in theirs:
            counts = theirs[root].outgoing or counts
        return head._replace(outgoing=counts if rank == root else None, incoming=(counts[rank],))
    if kind == Kind.ALLTOALLV:
        outgoing = _filled({r: s.incoming[rank] for r, s in theirs.items() if s.incoming}, size)
        incoming = _filled({r: s.outgoing[rank] for r, s in theirs.items() if s.outgoing}, size)
        return head._replace(outgoing=outgoing, incoming=incoming)
    return head


def fit(theirs: Mapping[int, Signature]) -> bool:
    """Say whether these calls of different ranks are one and the same collective."""
    first = next(iter(theirs.values()))
    if any(signature[:5] != first[:5] for signature in theirs.values()):
        return False
    kind, root = first.kind, first.root
    if kind == Kind.ALLGATHERV:
        return all(signature.incoming == first.incoming for signature in theirs.values())
    if kind == Kind.GATHERV and root in theirs:
        counts = theirs[root].incoming
        return counts is not None and all(
            s.outgoing == (counts[r],) for r, s in theirs.items() if r != root
        )
    if kind == Kind.SCATTERV and root in theirs:
        counts = theirs[root].outgoing
        return counts is not None and all(
            s.incoming == (counts[r],) for r, s in theirs.items() if r != root
        )
    if kind == Kind.ALLTOALLV:
        return all(
            a.outgoing is not None and b.incoming is not None and a.outgoing[q] == b.incoming[p]
            for p, a in theirs.items()
            for q, b in theirs.items()
        )
    return True


def _filled(known: Mapping[int, int], size: int) -> tuple[int, ...]:
    return tuple(max(known.get(rank, 0), 0) for rank in range(size))
