"""What packing must show on a GPU: NumPy's bits, and most of what a copy's bandwidth is.

Needs NumPy, CuPy and ml_dtypes. Alone: ``python tests/gpu/check_packing.py``; every line is JSON.
"""

from __future__ import annotations

import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import cupy
import numpy as np

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))

from gpu_tools import Report, each

from nbmn.gpu.packing import as_dtype, pack, unpack

FLOATS = [as_dtype(name) for name in ("float16", "bfloat16", "float32", "float64")]
LEAST = 0.8
"""Of a copy's bandwidth."""
WARM = 0.1
"""Seconds of work before it is timed: clocks are low while there was nothing to do."""


class Span(NamedTuple):
    index: int
    shape: tuple[int, ...]
    dtype: np.dtype
    begin: int
    end: int


class Packing(NamedTuple):
    dtype: np.dtype
    size: int
    spans: tuple[Span, ...]


def run(report: Report) -> None:
    """Check everything; raise AssertionError at the end if something is wrong or too slow."""
    each(*(partial(part, report) for part in (bandwidth, exactness, strided, large)))


def exactness(report: Report, sets: int = 3) -> None:
    """Pack and unpack between all dtypes, with and without scale and rounding: NumPy's bits."""
    random = np.random.default_rng()
    wires = (None, "float16", "bfloat16", "float32")
    # No gradient is bfloat16, and CuPy need not have the dtype.
    sources = [dtype for dtype in FLOATS if dtype.name != "bfloat16"]
    for source, target, wire in itertools.product(sources, FLOATS, wires):
        for _, scale in itertools.product(range(sets), (1.0, 1 / 3)):
            hosts = some_arrays(random, source)
            given = [array if random.random() < 0.8 else None for array in hosts]
            packing = planned(hosts, target, step=int(random.choice([1, 16 // target.itemsize])))
            what = f"{source} to {target}, wire {wire}, scale {scale}"
            same_as_numpy(packing, hosts, given, scale, wire, what)
    report("bit-exact packing", dtypes=len(sources) * len(FLOATS), wires=len(wires), sets=sets)


def some_arrays(random: np.random.Generator, dtype: np.dtype) -> list[np.ndarray]:
    """Arrays of any bits, of telling sizes; dozens of tiny ones among them."""
    sizes = [0, 1, 15, 16, 17, 4_095, 4_097, 100_003, *random.integers(1, 9, 200).tolist()]
    random.shuffle(sizes)
    bits = random.integers(0, 256, sum(sizes) * dtype.itemsize, np.uint8).view(dtype)
    ends = np.cumsum(sizes).tolist()
    return [bits[end - size : end] for size, end in zip(sizes, ends, strict=True)]


def planned(arrays: Sequence[Any], dtype: np.dtype, step: int = 1) -> Packing:
    """One buffer for all arrays, each at a multiple of ``step`` elements."""
    spans, end = [], 0
    for index, array in enumerate(arrays):
        begin = -(-end // step) * step
        end = begin + array.size
        spans.append(Span(index, array.shape, array.dtype, begin, end))
    return Packing(dtype, end, tuple(spans))


def stored(dtype: np.dtype) -> np.dtype:
    """What CuPy knows of this size."""
    return np.dtype(np.uint16) if dtype.name == "bfloat16" else dtype


def same_as_numpy(packing, hosts, given, scale, wire, what) -> None:
    expected = np.zeros(packing.size, packing.dtype)
    buffer = cupy.zeros(packing.size, stored(packing.dtype))
    devices = [None if array is None else cupy.asarray(array) for array in given]
    pack(expected, packing, given, scale=scale, wire=wire)
    pack(buffer, packing, devices, scale=scale, wire=wire)
    assert_same(buffer.get().view(packing.dtype), expected, f"pack {what}")
    back = zip(unpack(buffer, packing, devices), unpack(expected, packing, given), strict=True)
    for part, of in back:
        assert part.shape == of.shape
        assert_same(part.get(), of, f"unpack {what}")


@np.errstate(invalid="ignore")
def assert_same(got: np.ndarray, expected: np.ndarray, what: str) -> None:
    """Equal bits, but for those of NaN."""
    nan = expected != expected
    unsigned = f"u{expected.dtype.itemsize}"
    alike = (got.view(unsigned) == expected.view(unsigned)) | (nan & (got != got))
    assert alike.all(), f"{what}: {np.count_nonzero(~alike)} of {alike.size} elements differ"


def strided(report: Report) -> None:
    """Arrays that are not contiguous, of one number, on the host, or in the buffer."""
    host = np.random.default_rng().standard_normal((50, 30)).astype("f4")
    device = cupy.asarray(host)
    hosts = [host.T, host[::-1, ::3], np.asarray(host[3, 4]), np.broadcast_to(host[0], (9, 30))]
    devices = [device.T, device[::-1, ::3], device[3, 4], cupy.broadcast_to(device[0], (9, 30))]
    packing = planned([*hosts, host], np.dtype("f4"))
    buffer = cupy.empty(packing.size, "f4")
    pack(buffer, packing, [*devices, host])
    flat = np.concatenate([array.ravel() for array in (*hosts, host)])
    assert np.array_equal(buffer.get(), flat)
    half = buffer.size // 2
    halves = planned([buffer[half:], buffer[:half]], buffer.dtype)
    pack(buffer, halves, [buffer[half:], buffer[:half]], scale=2.0)
    assert np.array_equal(buffer.get(), 2 * np.concatenate([flat[half:], flat[:half]]))
    report("arrays that are not contiguous", arrays=len(devices))


def large(report: Report) -> None:
    """More than 2**31 elements in one array, and behind them more arrays."""
    size = 2**31 + 12_345
    if cupy.cuda.runtime.memGetInfo()[0] < 5 * size * 2:
        report("more than 2**31 elements", skipped="not enough memory")
        return
    pattern = cupy.arange(65_521, dtype="u2").view("f2")  # of a prime many: no tile repeats
    source = cupy.resize(pattern, size)
    after = cupy.arange(1_000, dtype="f2")
    packing = planned([source, after], np.dtype("f2"))
    buffer = cupy.full(packing.size, -1, "f2")
    pack(buffer, packing, [source, after])
    assert bool((buffer[:size].view("u2") == source.view("u2")).all())
    assert bool((buffer[size:] == after).all())
    buffer.fill(-1)
    pack(buffer, packing, [source, after], scale=0.5)
    for begin in range(0, size, 2**28):
        part, of = buffer[begin : begin + 2**28], source[begin : begin + 2**28]
        part = part[: min(2**28, size - begin)]
        halved = (of.astype("f4") * np.float32(0.5)).astype("f2")
        assert bool(((part == halved) | cupy.isnan(halved)).all())
    report("more than 2**31 elements", elements=packing.size)
    del source, buffer
    cupy.get_default_memory_pool().free_all_blocks()


def bandwidth(report: Report) -> None:
    """Bytes read and written per second, beside those of a copy of as many bytes."""
    shapes = resnet50()
    huge = [(2**25,)] * 8
    cases = [
        ("ResNet-50", shapes, "float32", "float32", 1.0, True),
        ("ResNet-50", shapes, "float32", "float32", 1 / 3, True),
        ("ResNet-50", shapes, "float32", "float16", 1 / 3, True),
        ("ResNet-50", shapes, "float32", "bfloat16", 1 / 3, True),
        ("ResNet-50", shapes, "float16", "float32", 1 / 3, True),
        ("1 GiB", huge, "float32", "float32", 1 / 3, True),
        ("1 GiB", huge, "float32", "float16", 1 / 3, True),
        ("1 GiB", huge, "float32", "bfloat16", 1 / 3, True),
        # One element off the 16-byte grid from the first array on: as far as it goes.
        ("ResNet-50, not aligned", [(1,), *shapes], "float32", "float32", 1 / 3, False),
        ("ResNet-50, not aligned", [(1,), *shapes], "float32", "float16", 1 / 3, False),
    ]
    slow = []
    for name, sizes, source, target, scale, counts in cases:
        figures = measured(sizes, np.dtype(source), as_dtype(target), scale)
        report(f"packing {name}, {source} to {target}, scale {scale:.2f}", **figures)
        if counts and figures["of_a_copy"] < LEAST:
            slow.append(f"{name}, {source} to {target}: {figures['of_a_copy']:.2f} of a copy")
    assert not slow, "; ".join(slow)


def measured(
    shapes: Sequence[tuple[int, ...]], source: np.dtype, target: np.dtype, scale: float
) -> dict[str, float]:
    """Time packing of arrays of these shapes, over enough of them that no cache holds them."""
    elements = sum(map(prod, shapes))
    nbytes = elements * (source.itemsize + target.itemsize)
    sets = max(2, -(-(2**30) // nbytes))
    random = cupy.random.default_rng(0)
    arrays = [
        [random.standard_normal(prod(shape), dtype="f4").astype(source) for shape in shapes]
        for _ in range(sets)
    ]
    packing = planned(arrays[0], target)
    buffers = [cupy.empty(packing.size, stored(target)) for _ in range(sets)]
    half = nbytes // 2
    # No zeros, which may be moved faster.
    froms = [random.standard_normal(half // 4 + 1, dtype="f4").view("u1") for _ in range(sets)]
    tos = [cupy.empty(half, "u1") for _ in range(sets)]

    def pack_all() -> None:
        for buffer, given in zip(buffers, arrays, strict=True):
            pack(buffer, packing, given, scale=scale)

    def copy_all() -> None:
        for to, of in zip(tos, froms, strict=True):
            to.data.copy_from_device_async(of.data, half)

    packs, copies = seconds(pack_all) / sets, seconds(copy_all) / sets
    began = time.perf_counter()
    pack_all()
    host = (time.perf_counter() - began) / sets
    cupy.cuda.get_current_stream().synchronize()
    return {
        "microseconds": packs * 1e6,
        "terabytes_per_second": nbytes / packs / 1e12,
        "copy_terabytes_per_second": nbytes / copies / 1e12,
        "of_a_copy": copies / packs,
        "microseconds_on_the_host": host * 1e6,
    }


def seconds(call: Callable[[], None], repeats: int = 21) -> float:
    """Median time of what ``call`` queues, without the gaps that queueing leaves."""
    call()  # compiles
    cupy.cuda.Device().synchronize()
    with cupy.cuda.Stream(non_blocking=True) as stream:
        stream.begin_capture()
        call()
        graph = stream.end_capture()
        until = time.perf_counter() + WARM
        while time.perf_counter() < until:
            graph.launch(stream)
            stream.synchronize()
        times = []
        for _ in range(repeats):
            start, end = cupy.cuda.Event(), cupy.cuda.Event()
            start.record(stream)
            graph.launch(stream)
            end.record(stream)
            end.synchronize()
            times.append(cupy.cuda.get_elapsed_time(start, end) / 1e3)
    return statistics.median(times)


def resnet50() -> list[tuple[int, ...]]:
    """Shapes of its 161 parameters."""
    shapes: list[tuple[int, ...]] = []

    def convolution(ins: int, outs: int, width: int) -> None:
        shapes.extend([(outs, ins, width, width), (outs,), (outs,)])

    convolution(3, 64, 7)
    ins = 64
    for middle, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            convolution(ins, middle, 1)
            convolution(middle, middle, 3)
            convolution(middle, 4 * middle, 1)
            if block == 0:
                convolution(ins, 4 * middle, 1)
            ins = 4 * middle
    return [*shapes, (1000, 2048), (1000,)]


if __name__ == "__main__":
    run(lambda name, **figures: print(json.dumps({"name": name, **figures}), flush=True))
