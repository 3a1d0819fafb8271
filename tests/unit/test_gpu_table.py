"""Which elements the blocks of a launch copy, for arrays of any size."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbmn.gpu.kernels_table import LARGE, LONGEST, SMALL, THREADS, batches, table_dtype, tiling


def copied(batch, tile, pointers, itemsize):
    """What each entry copies, as the kernel finds it: (address, begin, count) in whole tiles."""
    table = batch.table(np.array(pointers, np.uint64), itemsize)
    firsts = [int(first) for first in table["first"][: batch.entries]]
    assert firsts == sorted(set(firsts))
    assert firsts[0] == 0
    for entry, (first, after) in enumerate(zip(firsts, [*firsts[1:], batch.tiles], strict=True)):
        count = int(table["count"][entry])
        assert (after - first - 1) * tile < count <= (after - first) * tile
        yield int(table["source"][entry]), int(table["begin"][entry]), count


sizes = st.one_of(
    st.integers(0, 100), st.sampled_from([2**31 - 1, 2**31, 2**31 + 1, 2**33 + 5]), st.just(0)
)


@given(st.lists(st.tuples(sizes, st.integers(0, 9)), max_size=30), st.integers(1, 7))
def test_every_element_is_copied_once(arrays, capacity):
    begins, end = [], 0
    for size, gap in arrays:
        begins.append(end + gap)
        end = begins[-1] + size
    pointers = [(1 + row) << 44 for row in range(len(arrays))]
    got = [
        piece
        for batch in batches(begins, [size for size, _ in arrays], 2048, capacity)
        for piece in copied(batch, 2048, pointers, 4)
    ]
    expected = [
        (pointer + 4 * skip, begin + skip, min(LONGEST, size - skip))
        for pointer, begin, (size, _) in zip(pointers, begins, arrays, strict=True)
        for skip in range(0, size, LONGEST)
    ]
    assert got == expected


def test_a_missing_array_has_no_address_in_any_of_its_pieces():
    (batch,) = batches([0, 7], [2**32, 5], 4096, 10)
    table = batch.table(np.array([0, 1024], np.uint64), 4)
    assert table["source"][:3].tolist() == [0, 0, 1024]
    assert batch.entries == 3


def test_pointers_of_one_launch_do_not_reach_the_next():
    (batch,) = batches([0], [5], 4096, 10)
    first = batch.table(np.array([16], np.uint64), 4)
    assert batch.table(np.array([32], np.uint64), 4)["source"][0] == 32
    assert first["source"][0] == 16


def test_small_tables_are_used_where_they_do():
    few, many = (batches(range(n), [1] * n, 4096, LARGE) for n in (SMALL, SMALL + 1))
    assert [batch.capacity for batch in (*few, *many)] == [SMALL, LARGE]
    assert len(batches(range(3000), [1] * 3000, 4096, LARGE)) == 3
    assert batches([], [], 4096, LARGE) == batches([0], [0], 4096, LARGE) == ()


@pytest.mark.parametrize(("capacity", "limit"), [(SMALL, 4096), (LARGE, 32764)])
def test_arguments_fit(capacity, limit):
    others = 4 + 4 + 8 + 8
    assert table_dtype(capacity).itemsize + others <= limit


@pytest.mark.parametrize("source", [1, 2, 4, 8])
@pytest.mark.parametrize("target", [1, 2, 4, 8])
def test_tiles(source, target):
    tiles = tiling(source, target)
    assert tiles.lanes * max(source, target) == 16
    assert tiles.tile == THREADS * tiles.lanes * tiles.unroll
    assert LONGEST % tiles.tile == 0
    # Tile numbers of a full table stay below 2**32, with the blocks that are added to them.
    assert LARGE * (LONGEST // tiles.tile) + 2**16 < 2**32
