"""What a rank copies into its window, and what it leaves where it is."""

import mmap

import numpy as np
import pytest

from nbmn.communicators import streaming
from nbmn.communicators.backend import MeanRequest
from nbmn.communicators.contribution import contribute
from nbmn.communicators.layout import plan_layout
from nbmn.communicators.parameters import Entry, pack, plan_packing

SHAPES = [(3,), (100, 200), (90, 300), (7, 5000), (64, 400), (2,)]


def plain(rng, shape):
    return rng.randn(*shape).astype(np.float32)


def make(kind, rng):
    arrays = [plain(rng, shape) for shape in SHAPES]
    if kind == "views":
        arrays = [np.stack([array, array])[1] for array in arrays]
    elif kind == "read-only":
        for array in arrays:
            array.flags.writeable = False
    elif kind == "fortran":
        arrays = [np.asfortranarray(array) for array in arrays]
    elif kind == "missing":
        arrays[1] = arrays[4] = None
    elif kind == "of a buffer":
        arrays = [np.frombuffer(bytearray(a.tobytes()), "f4").reshape(a.shape) for a in arrays]
    return arrays


def shared(rng):
    """Gradients of which several share memory: two are one array, others are views of it."""
    one = plain(rng, (200, 200))
    return [one, one, one.reshape(400, 100), one[::-1], one[:100], one.ravel()[:20000]]


def request_of(arrays, wire=None):
    table = tuple(
        Entry(f"/{n}", SHAPES[n] if a is None else a.shape, "<f4", True)
        for n, a in enumerate(arrays)
    )
    return MeanRequest(table, arrays, 2, wire)


KINDS = ["plain", "views", "read-only", "fortran", "missing", "of a buffer", "shared"]


@pytest.fixture(params=[False, True], ids=["cached", "streamed"])
def memory(request, monkeypatch):
    """Return what makes windows that begin as those that ranks share; how it is copied differs."""
    monkeypatch.setattr(streaming, "exceeds_caches", lambda nbytes: request.param)

    def window(nbytes):
        return np.frombuffer(mmap.mmap(-1, nbytes), np.uint8)

    return window


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("wire", [None, "<f2"])
@pytest.mark.parametrize(("shards", "shard"), [(1, 0), (2, 0), (2, 1), (3, 1), (5, 4), (2, 2)])
def test_all_is_found_where_it_is_read(kind, wire, shards, shard, memory):
    rng = np.random.RandomState(0)
    request = request_of(shared(rng) if kind == "shared" else make(kind, rng), wire)
    rounded = np.dtype(wire or "f4")
    right = [
        np.zeros(entry.shape, "f4") if a is None else a.astype(rounded).astype("f4")
        for entry, a in zip(request.table, request.arrays, strict=True)
    ]
    layout = plan_layout(request.table, shards)
    window = memory(layout.nbytes)
    window.fill(99)
    given = contribute(request, layout, shard, window)
    begin, end = layout.cuts[shard : shard + 2] if shard < shards else (0, 0)
    for place in layout.small:
        there = window[place.begin : place.end].view("f4").reshape(place.shape)
        np.testing.assert_array_equal(there, right[place.index])
    for number, place in enumerate(layout.large):
        # Others read all but the own shard in the window.
        there = window[place.begin : place.end].view("f4")
        outside = np.ones(there.size, bool)
        outside[max(begin - place.begin, 0) // 4 : max(end - place.begin, 0) // 4] = False
        flat = right[place.index].reshape(-1)
        np.testing.assert_array_equal(there[outside], flat[outside])
        np.testing.assert_array_equal(given.arrays[number][~outside], flat[~outside])
        in_place = number in given.in_place
        assert (given.means[number] is given.arrays[number]) == in_place or (
            np.shares_memory(given.means[number], window)
        )
        if in_place:
            assert np.shares_memory(given.means[number], request.arrays[place.index])
    # The means that come first must not change what is added later.
    for number in given.in_place:
        given.means[number][:] = np.nan
    for number, place in enumerate(layout.large):
        if number not in given.in_place:
            inside = slice(max(begin - place.begin, 0) // 4, max(end - place.begin, 0) // 4)
            flat = right[place.index].reshape(-1)
            np.testing.assert_array_equal(given.arrays[number][inside], flat[inside])


def test_what_nobody_else_reads_is_not_copied(memory):
    request = request_of(make("plain", np.random.RandomState(1)))
    layout = plan_layout(request.table, 2)
    for shard in (0, 1):
        window = memory(layout.nbytes)
        window.fill(99)
        contribute(request, layout, shard, window)
        begin, end = layout.cuts[shard : shard + 2]
        large = [p for p in layout.large if p.begin < end and begin < p.end]
        assert large
        for place in large:
            assert (window[max(begin, place.begin) : min(end, place.end)] == 99).all()


@pytest.mark.parametrize("wire", [None, "<f4"])
def test_what_would_lose_its_imaginary_part_is_not_packed(wire):
    (packing,) = plan_packing((Entry("/p", (3,), "<f4", True),), summed=True)
    buffer = np.zeros(3, np.float32)
    for given in (np.array([1, 2, 3], dtype) for dtype in ("<f2", "<f4", "<f8")):
        pack(buffer, packing, [given], wire)
        np.testing.assert_array_equal(buffer, [1, 2, 3])
    with pytest.raises(TypeError, match="Cannot cast"):
        pack(buffer, packing, [np.array([1j, 2, 3], np.complex64)], wire)
