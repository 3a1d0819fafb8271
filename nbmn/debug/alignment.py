"""Which entries of several ranks' fingerprints belong together. Pure.

An object that is a part of several others has its parts under one path only, and which one may
be another on each rank: ranks may share objects that are copies on others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nbmn.debug.fingerprint import DEEP, MOST
from nbmn.debug.leaves import Leaf

Leaves = Mapping[str, Leaf]


@dataclass(frozen=True, slots=True)
class Aligned:
    """Entries that belong together."""

    path: str
    """Where one comes to them."""
    places: Mapping[int, str]
    """By rank: where it stands in that rank's fingerprint; ranks without it are left out."""


def align(told: Mapping[int, Leaves]) -> tuple[list[Aligned], bool]:
    """Go through the entries of all ranks at the same time, parents first.

    Parts of things that are of different kinds do not belong together. The second result is
    false where ranks share objects so differently that not all was gone through.
    """
    parts = {rank: _parts(leaves) for rank, leaves in told.items()}
    found: list[Aligned] = []
    seen: set[tuple[tuple[int, str], ...]] = set()
    pending = [("", dict.fromkeys(told, ""), 0)] if told else []
    complete = True
    while pending:
        path, named, depth = pending.pop()
        places = {rank: _first(told[rank], place) for rank, place in named.items()}
        entry = tuple(places.items())
        if entry in seen:
            continue
        if len(found) >= 2 * MOST or depth > 2 * DEEP:
            complete = False
            continue
        seen.add(entry)
        found.append(Aligned(path, places))
        if len(places) < len(told) or len({told[r][at].kind for r, at in places.items()}) > 1:
            continue
        names = dict.fromkeys(n for rank, at in places.items() for n in parts[rank].get(at, ()))
        pending += [
            (
                path + name,
                {r: at + name for r, at in places.items() if at + name in told[r]},
                depth + 1,
            )
            for name in reversed(names)
        ]
    return found, complete


def _parts(leaves: Leaves) -> dict[str, list[str]]:
    """The names of each entry's parts."""
    found: dict[str, list[str]] = {}
    outer: list[str] = []
    for path, leaf in leaves.items():
        del outer[leaf.depth :]
        if outer:
            found.setdefault(outer[-1], []).append(path[len(outer[-1]) :])
        outer.append(path)
    return found


def _first(leaves: Leaves, path: str) -> str:
    same = leaves[path].same
    return path if same is None else same
