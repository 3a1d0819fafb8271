"""Compiled passes over memory, against NumPy to the last bit."""

import subprocess
import sys

import numpy as np
import pytest

from nbmn.communicators import streaming
from nbmn.communicators.reduction import average

needs_passes = pytest.mark.skipif(not streaming.available(), reason="needs llvmlite")


def memory(nbytes: int, offset: int = 0) -> np.ndarray:
    """Return bytes that begin so far behind the beginning of a cache line."""
    whole = np.full(nbytes + 2 * streaming.LINE, 0xA5, np.uint8)
    begin = -whole.ctypes.data % streaming.LINE + offset
    return whole[begin : begin + nbytes]


def bits(array: np.ndarray) -> bytes:
    return array.tobytes()


@needs_passes
@pytest.mark.parametrize("nbytes", [65536, 65536 + 8, 65536 + 248, 65536 + 256, 1_000_000])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.complex64])
@pytest.mark.parametrize("offsets", [(0, 0), (0, 8), (8, 0), (64, 16)])
def test_copies(nbytes, dtype, offsets):
    rng = np.random.default_rng(nbytes)
    source = memory(nbytes, offsets[1])
    source[...] = rng.integers(0, 256, nbytes, np.uint8)
    around = memory(nbytes + 2 * 64, offsets[0])
    streaming.copy(around[64:-64].view(dtype), source.view(dtype))
    assert bits(around[64:-64]) == bits(source)
    assert (around[:64] == 0xA5).all()
    assert (around[-64:] == 0xA5).all()


def test_copies_what_it_cannot_stream():
    source = np.arange(200_000, dtype=np.float32).reshape(400, 500)
    target = np.zeros((400, 500))
    streaming.copy(target, source)
    np.testing.assert_array_equal(target, source)
    target = np.zeros((500, 400), np.float32)
    streaming.copy(target, source.T)
    np.testing.assert_array_equal(target, source.T)
    streaming.copy(target[::2], source.T[::2])
    np.testing.assert_array_equal(target, source.T)
    small = np.zeros(3, np.float32)
    streaming.copy(small, np.ones(3, np.float32))
    assert (small == 1).all()


def numbers(count: int, size: int, dtype: type) -> list[np.ndarray]:
    """Return arrays of which sums depend on their order, with all that is special."""
    rng = np.random.default_rng([count, size])
    scale = 10.0 ** rng.integers(-30, 30, (count, size))
    values = (rng.normal(size=(count, size)) * scale).astype(dtype)
    tiny = np.finfo(dtype).smallest_subnormal
    for row in values:
        row[rng.integers(0, size, 12)] = [np.nan, np.inf, -np.inf, 0.0, -0.0, tiny] * 2
    values[:, 0] = -0.0
    return list(values)


@needs_passes
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [1000, 64, 4096])
@pytest.mark.parametrize(("count", "divisor"), [(1, 1), (2, 2), (3, 3), (3, 2), (4, 4), (9, 7)])
def test_means(dtype, size, count, divisor):
    parts = numbers(count, size, dtype)
    with np.errstate(all="ignore"):
        total = parts[0].copy()
        for part in parts[1:]:
            total = total + part
        right = total / dtype(divisor)
    done = streaming.mean(parts, parts, divisor)
    assert done == size - size % (256 // dtype().itemsize)
    for part in parts:
        np.testing.assert_array_equal(part[:done], right[:done])
        known = ~np.isnan(right[:done])
        np.testing.assert_array_equal(
            np.signbit(part[:done])[known], np.signbit(right[:done])[known]
        )


@needs_passes
def test_what_has_no_pass_is_left_to_numpy():
    half = [np.ones(1000, np.float16)] * 2
    assert streaming.mean(half, half, 2) == 0
    short = [np.ones(63, np.float32)] * 2
    assert streaming.mean(short, short, 2) == 0


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("own", [0, 1, 2])
@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("passes", [True, False])
def test_averages_into_the_place_of_each(dtype, own, in_place, passes, monkeypatch):
    if not passes:
        monkeypatch.setattr(streaming, "_compiled", lambda: None)
    rng = np.random.default_rng(0)
    parts = [rng.normal(size=1001).astype(dtype) for _ in range(3)]
    wide = np.float64 if dtype == np.float64 else np.float32
    right = ((parts[0].astype(wide) + parts[1] + parts[2]) / wide(3)).astype(dtype)
    before = parts[own].copy()
    target = parts[own] if in_place else np.empty_like(parts[own])
    average(parts, own, target, 3)
    written = [*parts[:own], target, *parts[own + 1 :]]
    for part in written:
        assert bits(part) == bits(right)
    if not in_place:
        assert bits(parts[own]) == bits(before)


def test_does_without_llvmlite():
    code = (
        "import sys; sys.modules['llvmlite'] = None\n"
        "import numpy as np\n"
        "from nbmn.communicators import streaming\n"
        "assert not streaming.available()\n"
        "target = np.zeros(100_000)\n"
        "streaming.copy(target, np.ones(100_000))\n"
        "assert target.all()\n"
        "assert streaming.mean([target], [target], 1) == 0\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
