"""Layouts, the choice between ways, and the arithmetic of shared memory, without ranks."""

import gc
from math import prod

import numpy as np
import pytest

from nbmn.communicators import shared_memory
from nbmn.communicators.calibration import ROUNDS, Calibration
from nbmn.communicators.layout import LINE, PIECE, SMALL, plan_layout
from nbmn.communicators.parameters import Entry
from nbmn.communicators.reduction import add, add_up, divide, spread

linux = pytest.mark.skipif(shared_memory.sys.platform != "linux", reason="Linux only")


def table(*shapes, dtype="<f4"):
    return tuple(Entry(f"/p{n}", shape, dtype, True) for n, shape in enumerate(shapes))


TABLES = [
    table((3,), (64, 700), (), (300, 1000), (0, 4), (129, 65), (1111, 77)),
    table((3000, 3000)),
    table((1,), (2,), dtype="<f2"),
    table((5,), dtype="<f8") + table((7,), (100_000,), dtype="<f2") + table((9,)),
    table((0,)),
    (),
]


@pytest.mark.parametrize("entries", TABLES)
@pytest.mark.parametrize("shards", [1, 2, 3, 7, 16])
def test_every_number_is_in_one_shard(entries, shards):
    layout = plan_layout(entries, shards)
    assert len(layout.shards) == shards
    owner = np.full(layout.nbytes, -1)
    for shard, pieces in enumerate(layout.shards):
        for piece in pieces:
            assert 0 < piece.size * piece.dtype.itemsize <= PIECE
            assert piece.begin % LINE == 0
            part = owner[piece.begin : piece.begin + piece.size * piece.dtype.itemsize]
            assert (part == -1).all()
            part[:] = shard
            if piece.large is not None:
                place = layout.large[piece.large]
                assert place.begin + piece.first * piece.dtype.itemsize == piece.begin
                assert place.shard in (shard, None)
    seen = np.zeros(layout.nbytes, bool)
    for place in (*layout.small, *layout.large):
        entry = entries[place.index]
        assert place.shape == entry.shape
        assert place.end - place.begin == prod(place.shape) * np.dtype(entry.dtype).itemsize
        assert not seen[place.begin : place.end].any()
        seen[place.begin : place.end] = True
        assert (owner[place.begin : place.end] >= 0).all()
    assert {place.index for place in (*layout.small, *layout.large)} == set(range(len(entries)))
    assert all(place.end - place.begin >= SMALL for place in layout.large)


def test_shards_are_even():
    layout = plan_layout(table(*[(100, 1000)] * 31, (5,)), 3)
    sizes = [sum(piece.size for piece in pieces) for pieces in layout.shards]
    assert max(sizes) <= 1.1 * min(sizes)


def test_integers_are_not_for_shared_memory():
    assert plan_layout(table((3,), dtype="<i8"), 2) is None
    assert plan_layout(table((3,), dtype=">f4"), 2) is None


def test_float16_is_summed_in_float32_and_rounded_once():
    parts = [np.full(5, value, np.float16) for value in (60000, 60000, -60000)]
    total = add_up(parts, 1, parts[1])
    assert total.dtype == np.float32
    divide(total, 3)
    spread(total, parts)
    for part in parts:
        np.testing.assert_array_equal(part, np.float16(20000))


@pytest.mark.parametrize("own", range(5))
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_sums_are_in_rank_order_whoever_adds(own, dtype):
    rng = np.random.RandomState(own)
    parts = [rng.randn(1000).astype(dtype) for _ in range(5)]
    wide = np.float64 if dtype == np.float64 else np.float32
    right = parts[0].astype(wide)
    for part in parts[1:]:
        right = right + part.astype(wide)
    # Else this would prove nothing; sums of a few float16 are exact.
    assert dtype == np.float16 or (right != sum(part.astype(wide) for part in parts[::-1])).any()
    before = [part.copy() for part in parts]
    apart = np.empty(1000, wide)
    add(parts, apart)
    np.testing.assert_array_equal(apart, right)
    np.testing.assert_array_equal(parts, before)
    elsewhere = np.empty(1000, dtype)
    np.testing.assert_array_equal(add_up(parts, own, elsewhere), right)
    np.testing.assert_array_equal(parts, before)
    total = add_up(parts, own, parts[own])
    np.testing.assert_array_equal(total, right)
    assert (total is parts[own]) == (dtype != np.float16)
    for place, (part, as_before) in enumerate(zip(parts, before, strict=True)):
        if place != own:
            np.testing.assert_array_equal(part, as_before)


def test_the_sum_of_one_is_itself():
    alone = np.arange(3, dtype=np.float32)
    assert add_up([alone], 0, alone) is alone
    np.testing.assert_array_equal(alone, [0, 1, 2])


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 8])
def test_division_is_correctly_rounded(count):
    total = np.random.RandomState(0).randn(1000).astype(np.float32)
    total[:3] = 1e-45, 1e-40, np.inf
    right = total / np.float32(count)
    divide(total, count)
    np.testing.assert_array_equal(total, right)


def test_calibration_tries_each_way_and_takes_the_fastest_per_size():
    calibration, ways = Calibration(), (2, 5)
    costs = {100: (5.0, 1.0), 1_000_000: (1.0, 5.0)}
    for nbytes, cost in costs.items():
        tried = []
        while not calibration.settled(ways, nbytes):
            way = calibration.way(ways, nbytes)
            tried.append(way)
            # The first time is said to be quick, and must not count.
            seconds = 0.1 if len(tried) <= 2 and way == 5 else cost[ways.index(way)]
            least = calibration.tell(ways, nbytes, seconds)
            if least is not None:
                assert least == list(cost)
                calibration.settle(ways, nbytes, least)
        assert tried == [2, 5] * ROUNDS
    assert calibration.way(ways, 100) == calibration.way(ways, 101) == 5
    assert calibration.way(ways, 1_000_000) == 2
    assert calibration.way((3, 4), 100) == 3  # other ways are another matter


def test_the_first_way_is_kept_where_little_is_gained():
    calibration = Calibration()
    calibration.settle((7, 8, 9), 100, [1.0, 0.9, 0.95])
    assert calibration.way((7, 8, 9), 100) == 7


@linux
def test_segments_are_reused_once_nobody_holds_them():
    pool = shared_memory.Pool()
    first = pool.take(1000)
    view = first.lend()[10:20].view(np.uint8).reshape(2, 5)[1:]
    gc.collect()
    second = pool.take(500)
    assert second is not first
    del view
    assert pool.take(700) is first
    assert pool.take(400) is second


@linux
def test_memory_that_is_not_there_is_an_error_with_a_word_why(monkeypatch):
    with pytest.raises(shared_memory.SharedMemoryError, match=r"the host has .* MB"):
        shared_memory.Segment(1, 2**50)
    monkeypatch.setattr(shared_memory, "_left_in_group", lambda: 10_000_000)
    with pytest.raises(shared_memory.SharedMemoryError, match="the container has 10 MB"):
        shared_memory.Segment(1, 20_000_000)
    monkeypatch.setattr(shared_memory.sys, "platform", "darwin")
    with pytest.raises(shared_memory.SharedMemoryError, match="needs Linux"):
        shared_memory.Segment(1, 100)


@linux
def test_a_peer_sees_what_is_written():
    segment = shared_memory.Segment(1, 100)
    peer = shared_memory.open_segment(shared_memory.os.getpid(), segment.fd, 100)
    segment.bytes[:] = 7
    assert (peer == 7).all()
    del segment
    gc.collect()
    assert (peer == 7).all()
