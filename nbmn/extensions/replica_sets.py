"""Which ranks have the same state."""

from __future__ import annotations

import operator
from collections.abc import Iterable

ReplicaSets = tuple[tuple[int, ...], ...]
"""Ranks in ascending order; the first of each set writes for it. Every rank is in one."""


def parse_replica_sets(replica_sets: Iterable[int | Iterable[int]], size: int) -> ReplicaSets:
    """Return the sets that a user meant.

    Parameters
    ----------
    replica_sets
        Each a rank or several; the ranks that are in none make one more.
    size
        How many ranks there are.

    Raises
    ------
    TypeError
        Something is not a rank.
    ValueError
        There is no such rank, a rank is in two sets, or a set is empty.
    """
    sets = [_parse(ranks) for ranks in replica_sets]
    seen: set[int] = set()
    for ranks in sets:
        if not ranks:
            raise ValueError("a replica set must not be empty")
        for rank in ranks:
            if not 0 <= rank < size:
                raise ValueError(f"replica set {list(ranks)}: there are {size} ranks only")
            if rank in seen:
                raise ValueError(f"rank {rank} must not be in two replica sets")
            seen.add(rank)
    rest = tuple(sorted(set(range(size)) - seen))
    return (*sets, rest) if rest else tuple(sets)


def _parse(ranks: int | Iterable[int]) -> tuple[int, ...]:
    try:
        return (operator.index(ranks),)
    except TypeError:
        pass
    return tuple(sorted({operator.index(rank) for rank in ranks}))
