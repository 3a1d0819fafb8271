"""Packs CuPy arrays without a device: CuPy compiles and launches, and the host computes.

What arrives at the driver's launch, arguments by value included, is run by the kernel compiled for
the host. CuPy's own kernels are not run.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
import tempfile
import traceback
from pathlib import Path

import device_standin  # before CuPy

sys.path.append(str(Path(__file__).parents[1] / "unit"))
import host_kernel
import numpy as np
import pytest

from nbmn.communicators.parameters import Packing, Span
from nbmn.gpu import kernels
from nbmn.gpu.kernels_table import LARGE, SMALL, table_dtype
from nbmn.gpu.packing import as_dtype, pack, unpack, unpack_into

FUNCTIONS = ["none"]
LAUNCHED: list[str] = []
TABLES: list[np.void] = []
compiled = functools.cache(host_kernel.compiled)
folder = Path(tempfile.mkdtemp())
asked: list = []


def get_function(module: int, name: str) -> int:
    FUNCTIONS.append(name)
    return len(FUNCTIONS) - 1


def launch_kernel(function, grid, _y, _z, block, _v, _w, _shared, _stream, arguments, _extra):
    LAUNCHED.append(FUNCTIONS[function])
    if FUNCTIONS[function] != "pack":
        return
    how, capacity = asked[-1]
    at = ctypes.cast(arguments, ctypes.POINTER(ctypes.c_void_p))
    kind = table_dtype(capacity)
    table = np.frombuffer(ctypes.string_at(at[0], kind.itemsize), kind)[0]
    entries, tiles = (ctypes.cast(at[i], ctypes.POINTER(ctypes.c_uint32))[0] for i in (1, 2))
    buffer = ctypes.cast(at[3], ctypes.POINTER(ctypes.c_uint64))[0]
    scale = ctypes.cast(at[4], ctypes.POINTER(ctypes.c_double))[0]
    assert block == kernels.THREADS
    assert grid == tiles
    TABLES.append(table)
    launch = compiled(how, capacity, folder)
    launch(np.array(table), entries, tiles, buffer, scale, range(grid), grid)


device_standin.ANSWERS["moduleGetFunction"] = get_function
device_standin.ANSWERS["launchKernel"] = launch_kernel
import cupy  # noqa: E402


def kernel(how, capacity, make=kernels._kernel):
    asked.append((how, capacity))
    return make(how, capacity)


kernels._kernel = kernel


def spans(arrays, line=1):
    made, end = [], 0
    for index, array in enumerate(arrays):
        begin = -(-end // line) * line
        end = begin + array.size
        made.append(Span(index, array.shape, array.dtype, begin, end))
    return end, tuple(made)


def normal(sizes, dtype="f4"):
    random = np.random.default_rng(0)
    return [np.asarray(random.standard_normal(size), dtype) for size in sizes]


def put(hosts):
    arrays = [cupy.empty(host.shape, host.dtype) for host in hosts]
    for array, host in zip(arrays, hosts, strict=True):
        array.set(host)  # CuPy's constructor fills one of no dimensions by a kernel
    return arrays


def packed(hosts, given, dtype, **terms):
    """Pack on the device and on the host; return the buffer and its packing."""
    size, places = spans(hosts, 4)
    packing = Packing(np.dtype(dtype), size, places)
    stored = np.uint16 if packing.dtype.name == "bfloat16" else packing.dtype
    buffer, expected = cupy.empty(size, stored), np.zeros(size, stored)
    LAUNCHED.clear()
    TABLES.clear()
    pack(buffer, packing, given, **terms)
    pack(
        expected,
        packing,
        [None if g is None else h for h, g in zip(hosts, given, strict=True)],
        **terms,
    )
    got = buffer.get()
    for span in places:
        assert got[span.begin : span.end].tobytes() == expected[span.begin : span.end].tobytes()
    return buffer, packing


def check_one_launch_for_all_arrays():
    hosts = normal([(3, 5), (), (0,), 9_000, 7])
    given = put(hosts)
    packed(hosts, [*given[:3], None, given[4]], "f2", scale=1 / 3)
    assert LAUNCHED == ["pack"]


def check_hundreds():
    hosts = normal([3] * (SMALL + 50))
    packed(hosts, put(hosts), "f4")
    assert LAUNCHED == ["pack"]
    assert asked[-1][1] > SMALL


def check_tables_are_small_before_volta():
    volta = device_standin.ATTRIBUTES[75]
    try:
        for device, (major, most) in enumerate([(6, SMALL), (7, LARGE)], start=1):
            device_standin.ATTRIBUTES[75] = major
            assert kernels._capacity(device) == most
    finally:
        device_standin.ATTRIBUTES[75] = volta


def check_launches_per_dtype():
    hosts = [*normal([10, 20]), *normal([30], "f8"), *normal([5], "f2"), *normal([40], "f8")]
    packed(hosts, put(hosts), "f4", wire="float16", scale=0.1)
    assert LAUNCHED == ["pack"] * 3


def check_an_array_of_the_host_among_them():
    hosts = normal([10, 20])
    packed(hosts, [hosts[0], cupy.asarray(hosts[1])], "f4")


def check_bfloat16_there_and_back():
    hosts = normal([(4, 100), 33])
    buffer, packing = packed(hosts, put(hosts), as_dtype("bfloat16"))
    assert LAUNCHED == ["pack"]
    parts = unpack(buffer, packing, hosts)
    assert LAUNCHED == ["pack"] * 2
    for part, host in zip(parts, hosts, strict=True):
        assert (part.dtype, part.shape) == (host.dtype, host.shape)
        assert np.array_equal(part.get(), host.astype("bfloat16").astype("f4"))


def check_views_of_the_own_dtype():
    hosts = normal([(4, 100), (), 33])
    buffer, packing = packed(hosts, put(hosts), "f4")
    LAUNCHED.clear()
    parts = unpack(buffer, packing, hosts)
    assert not LAUNCHED
    for part, host, span in zip(parts, hosts, packing.spans, strict=True):
        assert part.data.ptr == buffer.data.ptr + 4 * span.begin
        assert part.shape == host.shape
        assert np.array_equal(part.get(), host)


def check_arrays_are_overwritten_without_a_kernel():
    hosts = normal([(4, 100), (), (0,), 33])
    buffer, packing = packed(hosts, put(hosts), "f4")
    arrays = put([np.full_like(host, 7) for host in hosts])
    LAUNCHED.clear()
    unpack_into(buffer, packing, arrays, {0, 1, 2})
    assert not LAUNCHED
    for array, host in zip(arrays[:3], hosts, strict=False):
        assert np.array_equal(array.get(), host)
    assert np.array_equal(arrays[3].get(), np.full(33, 7))
    unpack_into(buffer, packing, arrays)
    assert np.array_equal(arrays[3].get(), hosts[3])


def check_arrays_in_their_own_place():
    size, places = spans([np.empty(6, "f4"), np.empty(4, "f4")])
    packing = Packing(np.dtype("f4"), size, places)
    buffer = cupy.asarray(np.arange(10, dtype="f4"))
    LAUNCHED.clear()
    pack(buffer, packing, unpack(buffer, packing, [None, None]), scale=3.0)
    assert LAUNCHED == ["pack"]
    assert np.array_equal(buffer.get(), 3 * np.arange(10, dtype="f4"))


def check_arrays_elsewhere_in_the_buffer_are_read_from_a_copy():
    size, places = spans([np.empty(6, "f4"), np.empty(4, "f4")])
    buffer = cupy.empty(10, "f4")
    pack(buffer, Packing(np.dtype("f4"), size, places), [buffer[4:], buffer[:4]])
    for source in TABLES[-1]["source"][:2].tolist():
        assert not buffer.data.ptr <= source < buffer.data.ptr + buffer.nbytes


def check_strided_arrays_are_read_from_a_copy():
    array = cupy.empty((6, 4), "f4").T
    packing = Packing(np.dtype("f4"), 24, spans([array])[1])
    LAUNCHED.clear()
    pack(cupy.empty(24, "f4"), packing, [array])
    assert len(LAUNCHED) == 2
    assert LAUNCHED[1] == "pack"
    assert TABLES[-1]["source"][0] != array.data.ptr


def check_another_size():
    packing = Packing(np.dtype("f4"), 4, spans([np.empty(4, "f4")])[1])
    with pytest.raises(ValueError, match=r"array 0 has shape \(5,\)"):
        pack(cupy.empty(4, "f4"), packing, [cupy.empty(5, "f4")])


def check_another_device():
    packing = Packing(np.dtype("f4"), 4, spans([np.empty(4, "f4")])[1])
    there = cupy.cuda.UnownedMemory(cupy.empty(4, "f4").data.ptr, 16, None, 1)
    array = cupy.ndarray(4, "f4", cupy.cuda.MemoryPointer(there, 0))
    with pytest.raises(ValueError, match="array 0 is on <CUDA Device 1>, the buffer on <CUDA De"):
        pack(cupy.empty(4, "f4"), packing, [array])


status = 1
try:
    for name, check in list(globals().items()):
        if name.startswith("check_"):
            check()
            print(name, "passed", flush=True)
    status = 0
finally:
    if status:
        traceback.print_exc()
    sys.stderr.flush()
    os._exit(status)  # memory is given back after Python has ended, when nothing here can answer
