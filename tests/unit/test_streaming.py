"""Compiled passes over memory, against NumPy to the last bit."""

import importlib.util
import re
import subprocess
import sys

import numpy as np
import pytest

from nbmn.communicators import streaming
from nbmn.communicators.reduction import average, division

needs_passes = pytest.mark.skipif(
    importlib.util.find_spec("llvmlite") is None, reason="needs llvmlite"
)


@needs_passes
def test_there_are_passes_where_there_is_a_compiler():
    assert streaming.problem() is None


def memory(nbytes: int, offset: int = 0) -> np.ndarray:
    """Return bytes that begin so far behind the beginning of a cache line."""
    whole = np.full(nbytes + 2 * streaming.LINE, 0xA5, np.uint8)
    begin = -whole.ctypes.data % streaming.LINE + offset
    return whole[begin : begin + nbytes]


def bits(array: np.ndarray) -> bytes:
    return array.tobytes()


@pytest.fixture
def streamed(monkeypatch):
    """Return the bytes of each copy past the caches."""
    compiled, seen = streaming._compiled(), []

    def copy(target, source, nbytes):
        seen.append(nbytes)
        compiled["copy"](target, source, nbytes)

    monkeypatch.setattr(streaming, "_compiled", lambda: {**compiled, "copy": copy})
    return seen


@needs_passes
@pytest.mark.parametrize("nbytes", [65520, 65536, 65536 + 16, 65536 + 240, 65536 + 256, 1_000_000])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.complex64, np.int8])
@pytest.mark.parametrize("offsets", [(0, 0), (0, 8), (8, 0), (64, 16)])
def test_copies(nbytes, dtype, offsets, streamed):
    rng = np.random.default_rng(nbytes)
    source = memory(nbytes, offsets[1])
    source[...] = rng.integers(0, 256, nbytes, np.uint8)
    around = memory(nbytes + 2 * 64, offsets[0])
    streaming.copy(around[64:-64].view(dtype), source.view(dtype))
    assert bits(around[64:-64]) == bits(source)
    assert (around[:64] == 0xA5).all()
    assert (around[-64:] == 0xA5).all()
    fits = nbytes >= 65536 and offsets[0] % 64 == 0
    assert streamed == ([nbytes - nbytes % 256] if fits else [])


@needs_passes
def test_copies_elements_of_any_size(streamed):
    dtype = np.dtype([("a", "u1", 12)])
    source = np.random.default_rng(1).integers(0, 256, 12 * 10_007, np.uint8).view(dtype)
    target = memory(source.nbytes).view(dtype)
    streaming.copy(target, source)
    assert bits(target) == bits(source)
    assert len(streamed) == 1


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
    row = np.arange(500, dtype=np.float64)
    wide = np.zeros((400, 500))
    streaming.copy(wide, row)
    assert (wide == row).all()
    wide.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        streaming.copy(wide, np.ones((400, 500)))


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
@pytest.mark.parametrize("size", [32_768, 40_001])
@pytest.mark.parametrize(("count", "divisor"), [(1, 1), (2, 2), (3, 3), (3, 2), (4, 4), (9, 7)])
def test_means(dtype, size, count, divisor):
    parts = numbers(count, size, dtype)
    with np.errstate(all="ignore"):
        total = parts[0].copy()
        for part in parts[1:]:
            total = total + part
        right = total / dtype(divisor)
    done = streaming.mean(parts, parts, *division(parts[0].dtype, divisor))
    assert done == size - size % (256 // dtype().itemsize)
    for part in parts:
        np.testing.assert_array_equal(part[:done], right[:done])
        known = ~np.isnan(right[:done])
        np.testing.assert_array_equal(
            np.signbit(part[:done])[known], np.signbit(right[:done])[known]
        )


@needs_passes
@pytest.mark.parametrize("count", [2, 3])
def test_means_of_every_half(count):
    """Summed in float32, and rounded once; on processors that convert them."""
    every = np.arange(65_536, dtype=np.uint16).view(np.float16)
    rng = np.random.default_rng(count)
    parts = [rng.permutation(np.tile(every, 3)) for _ in range(count)]
    with np.errstate(all="ignore"):
        total = parts[0].astype(np.float32)
        for part in parts[1:]:
            total = total + part
        right = (total / np.float32(count)).astype(np.float16)
    done = streaming.mean(parts, parts, *division(total.dtype, count))
    assert done == (parts[0].size if streaming._converts_halves() else 0)
    known = ~np.isnan(right[:done])
    for part in parts:
        assert bits(part[:done][known]) == bits(right[:done][known])
        assert np.isnan(part[:done][~known]).all()


@needs_passes
def test_a_processor_that_converts_no_halves(monkeypatch):
    monkeypatch.setattr(streaming, "_converts_halves", lambda: False)
    streaming._compiled.cache_clear()
    try:
        for dtype, done in ((np.float16, 0), (np.float32, 100_000 // 64 * 64)):
            parts = [np.ones(100_000, dtype)] * 2
            assert streaming.mean(parts, parts, np.multiply, np.float32(0.5)) == done
    finally:
        streaming._compiled.cache_clear()


@needs_passes
def test_what_has_no_pass_is_left_to_numpy():
    for dtype in (np.complex64, ">f4", np.longdouble):
        parts = [np.ones(100_000, dtype)] * 2
        assert streaming.mean(parts, parts, *division(parts[0].dtype, 2)) == 0
    short = [np.ones(32_767, np.float32)] * 2
    assert streaming.mean(short, short, *division(short[0].dtype, 2)) == 0


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("own", [0, 1, 2])
@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("passes", [True, False])
def test_averages_into_the_place_of_each(dtype, own, in_place, passes, monkeypatch):
    if not passes:
        monkeypatch.setattr(streaming, "_compiled", lambda: "not today")
    rng = np.random.default_rng(0)
    parts = [rng.normal(size=40_001).astype(dtype) for _ in range(3)]
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


@needs_passes
def test_who_is_told_of_a_copy_finds_it_there():
    """Stores past the caches come in no order: a fence must follow them, on this processor too."""
    from llvmlite import binding

    code = streaming._machine().emit_assembly(binding.parse_assembly(streaming._COPY))
    stores = [found.end() for found in re.finditer(r"movnt|stnp", code)]
    assert stores
    assert re.search(r"lock|mfence|dmb", code[stores[-1] :])


def test_what_the_caches_hold(tmp_path, monkeypatch):
    def holds(nbytes):
        streaming._cache.cache_clear()
        return not streaming.exceeds_caches(nbytes)

    monkeypatch.setattr(streaming, "_CACHES", tmp_path)
    assert holds(streaming._USUAL_CACHE)
    assert not holds(streaming._USUAL_CACHE + 1)
    for number, size in enumerate(["32K", "0K", "?", "2048K"]):
        (tmp_path / f"index{number}").mkdir()
        (tmp_path / f"index{number}" / "size").write_text(f"{size}\n")
    assert holds(2048 * 1024)
    assert not holds(2048 * 1024 + 1)
    streaming._cache.cache_clear()


WITHOUT = """
import numpy as np
from nbmn.communicators import streaming
assert {reason!r} in streaming.problem(), streaming.problem()
target = np.zeros(100_000)
streaming.copy(target, np.ones(100_000))
assert target.all()
assert streaming.mean([target], [target], np.multiply, 1.0) == 0
"""


@pytest.mark.parametrize(
    ("before", "reason"),
    [
        ("import sys; sys.modules['llvmlite'] = None", "llvmlite"),
        ("import sys, types; sys.modules['llvmlite'] = types.ModuleType('llvmlite')", "binding"),
    ],
)
def test_does_without_llvmlite(before, reason):
    run(before + WITHOUT.format(reason=reason))


def test_does_where_no_memory_may_be_made_executable():
    """As under systemd's MemoryDenyWriteExecute, or SELinux; LLVM's code would crash there."""
    deny = "import ctypes, sys; sys.exit(77) if ctypes.CDLL(None).prctl(65, 1, 0, 0, 0) else None"
    if run(deny + WITHOUT.format(reason="PermissionError"), allowed=(0, 77)) == 77:
        pytest.skip("this kernel cannot deny it")


def run(code: str, allowed: tuple[int, ...] = (0,)) -> int:
    done = subprocess.run([sys.executable, "-c", code], timeout=60)
    assert done.returncode in allowed
    return done.returncode
