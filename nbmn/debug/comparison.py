"""Compares the fingerprints of ranks, and says in words what differs. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from nbmn.debug.alignment import Leaves, align
from nbmn.debug.contrast import Contrast
from nbmn.debug.digests import ITEMS
from nbmn.debug.expected import Expectations
from nbmn.debug.leaves import Leaf


@dataclass(frozen=True, slots=True)
class Group:
    """Ranks that have the same."""

    ranks: tuple[int, ...]
    leaf: Leaf | None
    """None where they have no such entry."""


@dataclass(frozen=True, slots=True)
class Difference:
    """An entry that is not alike on all ranks."""

    path: str
    reference: Group
    """What most ranks have; among as many, what the lowest rank has."""
    others: tuple[Group, ...]
    """What the other ranks have, lowest rank first."""
    expected: str = ""
    """Why it may well differ, in words."""
    places: Mapping[int, str] = field(default_factory=dict)
    """By rank: its path in that rank's fingerprint."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """How a value compares over ranks."""

    ranks: tuple[int, ...]
    """Those that were asked."""
    entries: int = 0
    """Entries in all, on any of them."""
    failures: Mapping[int, str] = field(default_factory=dict)
    """Ranks on which the expression raised, and what."""
    differences: tuple[Difference, ...] = ()
    nans: tuple[str, ...] = ()
    """Paths of arrays that hold NaN and are alike on all ranks."""
    opaque: tuple[str, ...] = ()
    """Kinds of parts that cannot be compared."""
    uncompared: int = 0
    """Entries of which something cannot be compared."""
    contrasts: Mapping[tuple[str, int], Contrast] = field(default_factory=dict)
    """By path and lowest rank of a group: a closer look at arrays of the reference's shape."""
    tolerance: float = 0.0
    """How far apart numbers may be that count as alike."""


def compare(told: Mapping[int, Leaves | str], tolerance: float = 0.0) -> Comparison:
    """Compare what ranks told.

    Parameters
    ----------
    told
        By rank: the leaves of its fingerprint, or what the expression raised there.
    tolerance
        Numbers that are at most so far apart count as alike; those in arrays are left to
        :func:`closer`.
    """
    failures = {rank: leaves for rank, leaves in told.items() if isinstance(leaves, str)}
    leaves = {rank: each for rank, each in told.items() if not isinstance(each, str)}
    aligned, complete = align(leaves)
    entries = {
        entry.path: {rank: leaves[rank][place] for rank, place in entry.places.items()}
        for entry in aligned
    }
    differences: list[Difference] = []
    for entry in aligned:
        groups = _groups(entries[entry.path], leaves)
        reference = max(groups, key=lambda group: (len(group.ranks), -group.ranks[0]))
        others = tuple(
            group
            for group in groups
            if group is not reference and not near(group.leaf, reference.leaf, tolerance)
        )
        if others:
            differences.append(Difference(entry.path, reference, others, places=entry.places))
    told_apart = {difference.path for difference in differences}
    every = [(path, leaf) for path, each in entries.items() for leaf in each.values()]
    expectations = Expectations({path: leaf.kind for path, leaf in every})
    unknown = {kind for _, leaf in every for kind in leaf.unknown}
    unknown |= set() if complete else {"objects that each rank shares in another way"}
    return Comparison(
        tuple(sorted(told)),
        len(entries),
        failures,
        tuple(replace(d, expected=expectations.reason(d.path)) for d in differences),
        tuple(dict.fromkeys(p for p, leaf in every if leaf.nans and p not in told_apart)),
        tuple(sorted(unknown)),
        len({path for path, leaf in every if leaf.unknown}) + (not complete),
        tolerance=tolerance,
    )


def _groups(entry: Mapping[int, Leaf], ranks: Iterable[int]) -> list[Group]:
    members: dict[bytes | None, list[int]] = {}
    for rank in sorted(ranks):
        leaf = entry.get(rank)
        members.setdefault(leaf.digest if leaf else None, []).append(rank)
    return [Group(tuple(ranks), entry.get(ranks[0])) for ranks in members.values()]


def near(one: Leaf | None, other: Leaf | None, tolerance: float) -> bool:
    """Whether two numbers of one type are at most so far apart."""
    if not tolerance or one is None or other is None or one.kind != other.kind:
        return False
    if _NUMBER.fullmatch(one.kind) is None:
        return False
    try:
        return abs(float(one.text) - float(other.text)) <= tolerance
    except ValueError:  # an integer of more digits than are shown
        return False


_NUMBER = re.compile(r"u?int\d*|float\d*")


@dataclass(frozen=True, slots=True)
class Move:
    """An array that goes from one rank to those that have another."""

    path: str
    source: int
    targets: tuple[int, ...]
    """The lowest rank of each group with an array of the same shape."""
    tolerance: float
    """How far apart numbers may be that count as alike; 0 where they are no numbers."""
    places: Mapping[int, str]
    """By rank: its path in that rank's fingerprint."""


def plan(comparison: Comparison) -> tuple[Move, ...]:
    """What has to move for a closer look, in an order that all ranks keep to."""
    moves = []
    for difference in comparison.differences:
        reference = difference.reference
        targets = tuple(
            group.ranks[0] for group in difference.others if _comparable(group, reference)
        )
        if targets:
            numbers = reference.leaf is not None and reference.leaf.unit != ITEMS
            tolerance = comparison.tolerance if numbers else 0.0
            source, places = reference.ranks[0], difference.places
            moves.append(Move(difference.path, source, targets, tolerance, places))
    return tuple(moves)


def _comparable(group: Group, reference: Group) -> bool:
    one, other = group.leaf, reference.leaf
    if one is None or other is None or one.shape is None:
        return False
    return one.shape == other.shape and one.unit == other.unit


def closer(comparison: Comparison, contrasts: Mapping[tuple[str, int], Contrast]) -> Comparison:
    """The comparison after a closer look: what differs in no number is alike."""
    differences = []
    for difference in comparison.differences:
        others = tuple(
            group
            for group in difference.others
            if not _same(
                group, difference.reference, contrasts.get((difference.path, group.ranks[0]))
            )
        )
        if others:
            differences.append(replace(difference, others=others))
    return replace(comparison, differences=tuple(differences), contrasts=contrasts)


def _same(group: Group, reference: Group, contrast: Contrast | None) -> bool:
    if contrast is None or contrast.differing or not (group.leaf and reference.leaf):
        return False
    return group.leaf.kind == reference.leaf.kind


def how(group: Group, reference: Group, contrast: Contrast | None = None) -> str:
    """In words, how a group differs from the reference."""
    mine, theirs = group.leaf, reference.leaf
    if mine is None:
        return "is missing"
    if theirs is None:
        return f"is there: {_said(mine, True)}"
    kinds = mine.kind != theirs.kind
    words = []
    if kinds or not contrast:
        here, there = _said(mine, kinds), _said(theirs, kinds)
        same = "of another definition" if mine.kind in ("class", "function") else "not the same"
        words.append(f"{here}, not {there}" if here != there else f"{here}, but {same}")
    if contrast is not None and contrast.differing:
        words.append(f"{contrast.differing:,} of {contrast.total:,} {mine.unit}")
        at = f"at [{', '.join(map(str, contrast.where))}] " if contrast.where else ""
        by = f"at most by {contrast.most:.3g} " if contrast.most is not None else ""
        if mine.unit == ITEMS:
            words.append(f"first {at}".rstrip())
        else:
            words.append(f"{by}{at}({contrast.here}, not {contrast.there})")
        if contrast.nans[0] != contrast.nans[1]:
            words.append(f"{contrast.nans[0]:,} NaN, not {contrast.nans[1]:,}")
    return "; ".join(words)


def _said(leaf: Leaf, with_kind: bool) -> str:
    if not with_kind or leaf.text == leaf.kind or leaf.text.startswith(f"{leaf.kind} "):
        return leaf.text
    return f"{leaf.kind} {leaf.text}"


def odd_ranks(differences: Sequence[Difference]) -> tuple[int, ...]:
    """The ranks that have something else than the reference."""
    return tuple(sorted({r for d in differences for group in d.others for r in group.ranks}))
