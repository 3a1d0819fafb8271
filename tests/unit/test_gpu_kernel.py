"""What the packing kernel computes, compiled for the host and compared with NumPy's casts."""

from __future__ import annotations

import functools
import mmap
import shutil

import host_kernel
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nbmn.gpu.kernels import Conversion, conversion
from nbmn.gpu.kernels_table import LARGE, SMALL

ml_dtypes = pytest.importorskip("ml_dtypes")
pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

FLOATS = [np.dtype(t) for t in (np.float16, ml_dtypes.bfloat16, np.float32, np.float64)]
GUARD = 64


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kernels")
    return functools.cache(
        lambda conversion, capacity: host_kernel.compiled(conversion, capacity, folder)
    )


def bits_of(array):
    return array.view(f"u{array.dtype.itemsize}")


@np.errstate(invalid="ignore")
def assert_same(got, expected):
    """Equal bits, but for those of NaN."""
    assert got.dtype == expected.dtype
    nan = expected != expected
    assert np.array_equal(got != got, nan)
    assert np.array_equal(bits_of(got)[~nan], bits_of(expected)[~nan])


@np.errstate(all="ignore")
def cast(values, target, scale=1.0, wire=None):
    values = values if wire is None else values.astype(wire)
    number = np.dtype("f8") if np.dtype("f8") in (values.dtype, target) else np.dtype("f4")
    return (values.astype(number) * number.type(scale)).astype(target)


@np.errstate(all="ignore")
def telling(dtype):
    """All values of 16-bit types; of the others random bits, and where roundings go either way."""
    if dtype.itemsize == 2:
        return np.arange(2**16, dtype=np.uint16).view(dtype)
    random = np.random.default_rng(0)
    anything = random.integers(0, 2**64, 20_000, np.uint64).view(dtype)
    usual = random.standard_normal(20_000).astype(dtype)
    edges = []
    for narrow in FLOATS[:3]:
        if narrow.itemsize < dtype.itemsize:
            step = 1 if narrow.itemsize == 2 else 65_521
            ladder = np.arange(0, 2 ** (8 * narrow.itemsize - 1) - step, step)
            unsigned = f"u{narrow.itemsize}"
            low = ladder.astype(unsigned).view(narrow).astype(dtype)
            high = (ladder + 1).astype(unsigned).view(narrow).astype(dtype)
            middle = low + (high - low) / 2
            edges += [low, middle, np.nextafter(middle, low), np.nextafter(middle, high)]
    return np.concatenate([anything, usual, *edges, *[-edge for edge in edges]])


def pack_all(library, how, arrays, target, begins, size, *, scale=1.0, grid=3, capacity=SMALL):
    """Run the kernel into a buffer between guards; return the buffer."""
    raw = np.full(GUARD + size * target.itemsize + GUARD, 0xA5, np.uint8)
    buffer = raw[GUARD : raw.size - GUARD]
    counts = [array.size if isinstance(array, np.ndarray) else array for array in arrays]
    host_kernel.launch_all(
        library,
        how,
        host_kernel.lay_out(how, begins, counts, capacity),
        [array.ctypes.data if isinstance(array, np.ndarray) else 0 for array in arrays],
        buffer.ctypes.data,
        scale,
        grid,
    )
    assert (raw[:GUARD] == 0xA5).all()
    assert (raw[raw.size - GUARD :] == 0xA5).all()
    return buffer.view(target)


def at(values, offset):
    """Copy values to memory that begins ``offset`` elements after a 16-byte boundary."""
    raw = np.zeros((values.size + offset) * values.itemsize + 16, np.uint8)
    begin = -raw.ctypes.data % 16 + offset * values.itemsize
    placed = raw[begin : begin + values.nbytes].view(values.dtype)
    placed[...] = values
    return placed


@pytest.mark.parametrize("scale", [1.0, 1 / 3])
@pytest.mark.parametrize("target", FLOATS, ids=str)
@pytest.mark.parametrize("source", FLOATS, ids=str)
def test_casts(library, source, target, scale):
    values = telling(source)
    how = conversion(source, target, scales=scale != 1)
    got = pack_all(library, how, [values], target, [0], values.size, scale=scale)
    assert_same(got, cast(values, target, scale))


@pytest.mark.parametrize(
    ("source", "wire", "target"),
    [("f4", "f2", "f4"), ("f8", "bfloat16", "f4"), ("f2", "bfloat16", "f4"), ("f8", "f4", "f8")],
)
@pytest.mark.parametrize("scale", [1.0, 0.1])
def test_rounded_before_it_is_scaled(library, source, wire, target, scale):
    source, wire, target = map(np.dtype, (source, wire, target))
    values = telling(source)
    how = conversion(source, target, wire=wire, scales=scale != 1)
    assert how.wire is not None
    got = pack_all(library, how, [values], target, [0], values.size, scale=scale)
    assert_same(got, cast(values, target, scale, wire))


def test_scaled_once_in_the_wider_type(library):
    values = np.array([1e-30, 3e38], np.float32)
    how = conversion(values.dtype, np.dtype("f8"), scales=True)
    got = pack_all(library, how, [values], np.dtype("f8"), [0], 2, scale=1e200)
    assert got.tolist() == [float(value) * 1e200 for value in values]


@pytest.mark.parametrize("dtype", ["?", "i1", "u2", "f2", "f4", "i8", "f8", "c8", "c16"])
def test_copies_keep_all_bits(library, dtype):
    dtype = np.dtype(dtype)
    raw = np.random.default_rng(1).integers(0, 256, 5_001 * dtype.itemsize, np.uint8)
    arrays = [raw.view(dtype), None]
    how = conversion(dtype, dtype)
    got = pack_all(library, how, [arrays[0], 7], dtype, [2, 5_003], 5_010)
    assert got[2:5_003].tobytes() == raw.tobytes()
    assert not got[5_003:].view(np.uint8).any()


def test_complex_numbers_are_scaled_in_both_parts(library):
    values = np.array([1 + 2j, np.inf - 3j, 0.1j], np.complex64)
    how = conversion(values.dtype, values.dtype, scales=True)
    got = pack_all(library, how, [values], values.dtype, [1], 4, scale=0.3)[1:]
    assert got.real.tolist() == (values.real * np.float32(0.3)).tolist()
    assert got.imag.tolist() == (values.imag * np.float32(0.3)).tolist()


@pytest.mark.parametrize(("source", "target"), [("f4", "f2"), ("f2", "f4"), ("f4", "f4")])
def test_any_alignment_and_size(library, source, target):
    source, target = np.dtype(source), np.dtype(target)
    how = conversion(source, target)
    tile = how.tiling.tile
    random = np.random.default_rng(2)
    for offset in range(8):
        for begin in range(8):
            sizes = [1, 3, 15, 16, 17, tile - 1 + begin, tile + 1 + offset]
            arrays = [at(random.standard_normal(n).astype(source), offset) for n in sizes]
            begins = [begin + sum(sizes[:i]) for i in range(len(sizes))]
            got = pack_all(library, how, arrays, target, begins, begin + sum(sizes))
            assert_same(got[begin:], cast(np.concatenate(arrays), target))
            assert (got[:begin].view(np.uint8) == 0xA5).all()


@pytest.mark.parametrize("capacity", [SMALL, LARGE])
def test_thousands_of_tiny_arrays(library, capacity):
    random = np.random.default_rng(3)
    arrays = [random.standard_normal(n % 5).astype("f4") for n in range(4_000)]
    begins = np.cumsum([0] + [array.size for array in arrays[:-1]]).tolist()
    how = conversion(np.dtype("f4"), np.dtype("f2"))
    size = sum(array.size for array in arrays)
    got = pack_all(library, how, arrays, np.dtype("f2"), begins, size, grid=100, capacity=capacity)
    assert_same(got, cast(np.concatenate(arrays), np.dtype("f2")))


PAIRS = [("f4", "f4"), ("f4", "f2"), ("f2", "f4"), ("f8", "f4")]


@settings(max_examples=150, deadline=None)
@given(
    pair=st.sampled_from(PAIRS),
    arrays=st.lists(
        st.tuples(st.integers(0, 40) | st.integers(4_000, 9_000), st.integers(0, 9), st.booleans()),
        max_size=12,
    ),
    gap=st.integers(0, 5),
    scale=st.sampled_from([1.0, 0.5, 1 / 7, 1e30, float("nan")]),
    grid=st.integers(1, 9),
    seed=st.integers(0, 99),
)
def test_any_arrays(library, pair, arrays, gap, scale, grid, seed):
    source, target = map(np.dtype, pair)
    random = np.random.default_rng(seed)
    given = [
        at(random.standard_normal(size).astype(source), offset) if there else size
        for size, offset, there in arrays
    ]
    begins, end = [], 0
    for size, _, _ in arrays:
        begins.append(end + gap)
        end = begins[-1] + size
    how = conversion(source, target, scales=scale != 1)
    got = pack_all(library, how, given, target, begins, end, scale=scale, grid=grid, capacity=5)
    expected = np.full(end * target.itemsize, 0xA5, np.uint8).view(target)
    for array, begin in zip(given, begins, strict=True):
        if isinstance(array, np.ndarray):
            expected[begin : begin + array.size] = cast(array, target, scale)
        else:
            expected[begin : begin + array] = 0
    assert_same(got, expected)


def test_in_place(library):
    buffer = np.arange(10_000, dtype=np.float32)
    how = conversion(buffer.dtype, buffer.dtype, scales=True)
    host_kernel.launch_all(
        library,
        how,
        host_kernel.lay_out(how, [3], [9_000], SMALL),
        [buffer[3:].ctypes.data],
        buffer.ctypes.data,
        2.0,
    )
    expected = np.arange(10_000, dtype=np.float32)
    expected[3:9_003] *= 2
    assert np.array_equal(buffer, expected)


def unreserved(size):
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000  # MAP_NORESERVE, which mmap lacks
    return np.frombuffer(mmap.mmap(-1, size, flags=flags), np.uint8)


def test_beyond_two_to_the_31_elements(library):
    """The last tiles of an array of 2**32 + 5 elements, in memory that is not touched elsewhere."""
    size, begin = 2**32 + 5, 2**33 + 3
    how = Conversion("u8", "u8")
    try:
        source, buffer = unreserved(size), unreserved(begin + size)
    except OSError as error:
        pytest.skip(f"this machine gives no memory that is not touched: {error}")
    tile = how.tiling.tile
    tail = np.random.default_rng(4).integers(1, 256, 3 * tile, np.uint8)
    source[-tail.size :] = tail
    (batch,) = host_kernel.lay_out(how, [begin], [size], SMALL)
    table = batch.table(np.array([source.ctypes.data], np.uint64), 1)
    launch = library(how, batch.capacity)
    last = range(batch.tiles - 4, batch.tiles)
    launch(table, batch.entries, batch.tiles, buffer.ctypes.data, 1.0, last, batch.tiles)
    assert np.array_equal(buffer[-tail.size :], tail)
    assert not buffer[-5 * tile : -tail.size].any()


def test_what_the_kernel_does_not_convert():
    f4, i4 = np.dtype("f4"), np.dtype("i4")
    assert conversion(np.dtype("i1"), i4) is None
    assert conversion(i4, i4, scales=True) is None
    assert conversion(f4, np.dtype("c8")) is None
    assert conversion(np.dtype(">f4"), f4) is None
    assert conversion(i4, i4, wire=np.dtype("f2")) == Conversion("u32", "u32")


def test_roundings_that_change_nothing_are_left_out():
    f2, f4, f8 = map(np.dtype, ("f2", "f4", "f8"))
    assert conversion(f4, f4, wire=f8) == Conversion("u32", "u32")
    assert conversion(f4, f2, wire=f2) == Conversion("f32", "f16")
    assert conversion(f4, f2, wire=f2, scales=True) == Conversion("f32", "f16", "f16")
    assert conversion(np.dtype("c8"), np.dtype("c8"), wire=f2).source.startswith("u")
