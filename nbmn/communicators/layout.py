"""Where gradients lie in memory that ranks share, and which rank averages which part."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod

import numpy as np

from nbmn.communicators.parameters import Table
from nbmn.communicators.streaming import LINE

SMALL = 32 * 1024
"""Gradients below this many bytes are averaged in runs: one NumPy call each costs more."""

UNEVEN = 0.05
"""By how much of itself a shard may be larger, if then no gradient is cut."""

PIECE = 512 * 1024
"""Bytes averaged at a time: what was read is still in the cache when it is written."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where one gradient lies."""

    index: int
    """In the table."""
    shape: tuple[int, ...]
    dtype: np.dtype
    begin: int
    end: int
    """In bytes."""
    shard: int | None = None
    """The one that contains all of it, or None."""


@dataclass(frozen=True, slots=True)
class Piece:
    """What is averaged at a time."""

    dtype: np.dtype
    begin: int
    """In bytes."""
    size: int
    """In elements."""
    large: int | None
    """Which of the large gradients it is part of; None for a run of small ones."""
    first: int
    """Its first element in that gradient."""


@dataclass(frozen=True, slots=True)
class Layout:
    """All gradients of a table, cut into one shard per rank that averages."""

    nbytes: int
    small: tuple[Place, ...]
    large: tuple[Place, ...]
    shards: tuple[tuple[Piece, ...], ...]
    cuts: tuple[int, ...]
    """Where shards begin, in bytes, and the last one ends."""


@functools.lru_cache(maxsize=64)
def plan_layout(table: Table, shards: int) -> Layout | None:
    """Lay out the present gradients, alike on all ranks; None if these cannot be averaged so."""
    rows = []
    for index, entry in enumerate(table):
        if entry.present and entry.shape is not None:
            dtype = np.dtype(entry.dtype)
            if dtype.kind not in "fc" or not dtype.isnative or LINE % dtype.itemsize:
                return None
            nbytes = dtype.itemsize * prod(entry.shape)
            rows.append((nbytes >= SMALL, dtype.str, index, dtype, entry.shape, nbytes))
    small: list[Place] = []
    large: list[Place] = []
    end = 0
    for is_large, _, index, dtype, shape, nbytes in sorted(rows, key=lambda row: row[:3]):
        begin = _aligned(end)
        end = begin + nbytes
        (large if is_large else small).append(Place(index, shape, dtype, begin, end))
    regions = _runs(small) + [(p.dtype, p.begin, p.end, n) for n, p in enumerate(large)]
    whole = max(_aligned(end), LINE)
    cuts = _cuts(whole, shards, [place.begin for place in large])
    large = [replace(place, shard=_shard_of(place, cuts)) for place in large]
    return Layout(
        whole,
        tuple(small),
        tuple(large),
        tuple(tuple(_pieces(regions, begin, end)) for begin, end in pairwise(cuts)),
        tuple(cuts),
    )


def _cuts(whole: int, shards: int, borders: list[int]) -> list[int]:
    """Divide evenly, but between two gradients where that makes little difference."""
    cuts = []
    for i in range(shards + 1):
        even = _aligned(whole * i // shards)
        nearest = min(borders, key=lambda border: abs(border - even), default=even)
        near = 0 < i < shards and abs(nearest - even) < whole / shards * UNEVEN
        cuts.append(nearest if near else even)
    return cuts


def _shard_of(place: Place, cuts: list[int]) -> int | None:
    for shard, (begin, end) in enumerate(pairwise(cuts)):
        if begin <= place.begin and place.end <= end:
            return shard
    return None


def _aligned(offset: int) -> int:
    # Nothing that two ranks write shares a line.
    return -(-offset // LINE) * LINE


def _runs(small: list[Place]) -> list[tuple[np.dtype, int, int, int | None]]:
    """Join neighbours of one dtype, with the gaps between them."""
    runs: list[tuple[np.dtype, int, int, int | None]] = []
    for place in small:
        if runs and runs[-1][0] == place.dtype:
            runs[-1] = (place.dtype, runs[-1][1], place.end, None)
        else:
            runs.append((place.dtype, place.begin, place.end, None))
    return runs


def _pieces(
    regions: list[tuple[np.dtype, int, int, int | None]], begin: int, end: int
) -> list[Piece]:
    pieces = []
    for dtype, region_begin, region_end, large in regions:
        for at in range(max(begin, region_begin), min(end, region_end), PIECE):
            size = (min(at + PIECE, end, region_end) - at) // dtype.itemsize
            first = (at - region_begin) // dtype.itemsize
            pieces.append(Piece(dtype, at, size, large, first))
    return pieces
