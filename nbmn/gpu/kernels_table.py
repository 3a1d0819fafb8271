"""What one launch of the packing kernel copies, as a table that travels with its arguments.

Pointers of gradients change with every step; where they go does not. So the table is laid out once
per model, and a step only writes the pointers into a copy of it.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

THREADS = 256
"""Per block."""

SMALL = 168
"""Entries of a table within the 4 KiB that arguments may take on every GPU."""

LARGE = 1360
"""Entries within the 32,764 bytes that they may take since CUDA 12.1, from Volta on."""

LONGEST = 2**31
"""Elements of one entry; what is longer has several. A multiple of every tile."""

_LINE = 16
"""Bytes of the wider dtype that a thread moves by one access, the most that there are."""

_IN_FLIGHT = 64
"""Bytes of the wider dtype that a thread moves at a time."""


@dataclass(frozen=True, slots=True)
class Tiling:
    """How a block walks over elements."""

    lanes: int
    """Elements that a thread loads and stores at a time."""
    unroll: int
    """Such groups that it has in flight."""

    @property
    def tile(self) -> int:
        """Elements that a block copies at a time."""
        return THREADS * self.lanes * self.unroll


def tiling(source_size: int, target_size: int) -> Tiling:
    """Return the tiling for elements of these sizes in bytes."""
    wider = max(source_size, target_size)
    return Tiling(_LINE // wider, _IN_FLIGHT // _LINE)


@functools.cache
def table_dtype(capacity: int) -> np.dtype:
    """Return the kernel's ``Table`` of so many entries."""
    return np.dtype(
        [
            ("source", np.uint64, capacity),
            ("begin", np.uint64, capacity),
            ("count", np.uint32, capacity),
            ("first", np.uint32, capacity),
        ]
    )


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """One launch, but for its pointers."""

    rows: np.ndarray
    """Which of the arrays each entry is part of."""
    skips: np.ndarray
    """Where in the array it begins, in elements."""
    tiles: int
    template: np.ndarray
    """The table, without sources."""

    @property
    def entries(self) -> int:
        """Entries of the table in use."""
        return len(self.rows)

    @property
    def capacity(self) -> int:
        """Entries of the table."""
        return self.template["source"].size

    def table(self, pointers: np.ndarray, itemsize: int) -> np.ndarray:
        """Return the table for arrays at these addresses (uint64; 0 for zeros)."""
        filled = self.template.copy()
        sources = pointers[self.rows]
        offsets = self.skips * np.uint64(itemsize)
        filled["source"][: self.entries] = np.where(sources == 0, sources, sources + offsets)
        return filled


def batches(
    begins: Sequence[int], counts: Sequence[int], tile: int, capacity: int
) -> tuple[Batch, ...]:
    """Lay out the launches that copy arrays of ``counts`` elements to ``begins`` of a buffer.

    Parameters
    ----------
    begins, counts
        In elements; empty arrays have no entry.
    tile
        Elements that a block copies at a time; divides :data:`LONGEST`.
    capacity
        Most entries of one launch.
    """
    pieces = [
        (row, skip, begin + skip, min(count - skip, LONGEST))
        for row, (begin, count) in enumerate(zip(begins, counts, strict=True))
        for skip in range(0, count, LONGEST)
    ]
    return tuple(
        _batch(np.array(pieces[at : at + capacity], np.uint64), tile)
        for at in range(0, len(pieces), capacity)
    )


def _batch(pieces: np.ndarray, tile: int) -> Batch:
    rows, skips, begins, counts = pieces.T
    ends = np.cumsum(-(-counts.astype(np.int64) // tile))
    template = np.zeros((), table_dtype(SMALL if len(rows) <= SMALL else LARGE))
    template["begin"][: len(rows)] = begins
    template["count"][: len(rows)] = counts
    template["first"][1 : len(rows)] = ends[:-1]
    return Batch(rows.astype(np.intp), skips, int(ends[-1]), template)
