"""Models with known gradients on the GPU, and comparison with what they must become."""

from __future__ import annotations

import functools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import chainer
import cupy
import gpu_tools
import ml_dtypes
import numpy as np

if gpu_tools.STANDIN:
    gpu_tools.gpu_standin.run_packing_on_the_host()

SHAPES = ((3, 5), (7,), (), (1000, 70), (2, 3, 4, 5))
TOLERANCE = {"float16": 1e-3, "float32": 1e-6, "float64": 1e-14, "bfloat16": 1e-2}


def same(got: Any, expected: Any, rtol: float = 0.0, what: str = "", *, kernels=False) -> None:
    """Fail unless an array is on the GPU, with the dtype, shape and values of NumPy's.

    Parameters
    ----------
    rtol
        Relative to the largest number; 0 for the very same.
    kernels
        It was computed by CuPy, and so has no values on the stand-in.
    """
    expected = np.asarray(expected)
    assert type(got) is cupy.ndarray, f"{what}: {type(got)}"
    assert (got.dtype, got.shape) == (expected.dtype, expected.shape), (
        f"{what}: {got.dtype} {got.shape}, not {expected.dtype} {expected.shape}"
    )
    # CuPy's constructor fills arrays of no dimensions by a kernel.
    if gpu_tools.STANDIN and (kernels or not expected.ndim):
        return
    close(got.get(), expected, rtol, what)


def close(got: np.ndarray, expected: np.ndarray, rtol: float, what: str) -> None:
    """Fail unless numbers differ by no more than a part of the largest."""
    distance = apart(got, expected)
    assert distance <= rtol, f"{what}: differs by {distance:.3g} of the largest, not {rtol:g}"


def apart(got: np.ndarray, expected: np.ndarray) -> float:
    """The largest difference, as a part of the largest number; infinite where only one is not."""
    if got.size == 0 or np.array_equal(got, expected, equal_nan=got.dtype.kind in "fc"):
        return 0.0
    wide = np.complex128 if expected.dtype.kind == "c" else np.float64
    a, b = got.astype(wide), expected.astype(wide)
    if not np.array_equal(np.isfinite(a), np.isfinite(b)):
        return float("inf")
    finite = np.isfinite(b)
    if not finite.any():
        return 0.0 if np.array_equal(a, b, equal_nan=True) else float("inf")
    largest = max(float(np.abs(b[finite]).max()), 1e-30)
    return float(np.abs(a[finite] - b[finite]).max()) / largest


def put(host: Any) -> cupy.ndarray:
    """Copy an array to the GPU, without a kernel."""
    host = np.asarray(host)
    array = cupy.empty(host.shape, host.dtype)
    array.set(host)
    return array


def random(seed: Sequence[int], shape: tuple[int, ...], dtype: str) -> np.ndarray:
    return np.asarray(np.random.default_rng(list(seed)).normal(size=shape), dtype)


def model_of(
    rank: int, size: int, dtype: str = "float32", seed: int = 0, shapes: Sequence = SHAPES
) -> tuple[chainer.Link, list[np.ndarray]]:
    """Return a model on the GPU with this rank's gradients, and each gradient's mean in float64."""
    model, means = chainer.Link(), []
    with model.init_scope():
        for number, shape in enumerate(shapes):
            param = chainer.Parameter(put(np.zeros(shape, dtype)))
            setattr(model, f"p{number}", param)
            grads = [random((seed, other, number), shape, dtype) for other in range(size)]
            param.grad = put(grads[rank])
            means.append(np.mean(np.asarray(grads, np.float64), axis=0))
    return model, means


def averages(comm: Any, dtype: str = "float32", seed: int = 0, wire: str | None = None) -> None:
    """Average gradients, and fail unless the means are right and on the GPU."""
    model, means = model_of(comm.rank, comm.size, dtype, seed)
    comm.multi_node_mean_grad(model)
    rtol = TOLERANCE[dtype] if wire is None else 4 * max(TOLERANCE[dtype], TOLERANCE[wire])
    for number, mean in enumerate(means):
        grad = getattr(model, f"p{number}").grad
        same(grad, mean.astype(dtype), rtol, f"{comm.name} {dtype} {wire} p{number}")


VALUES = ("float32", "float16", "int16", "bool", "complex128")


def valued(rank: int, seed: int = 0, count: int = 40) -> tuple[chainer.Link, list[np.ndarray]]:
    """Return a model on the GPU with this rank's values of several dtypes, and these."""
    model, hosts = chainer.Link(), []
    with model.init_scope():
        for number in range(count):
            dtype, shape = VALUES[number % len(VALUES)], SHAPES[number % 4]
            normal = 3 * random((seed, rank, number), shape, "float64")
            host = np.asarray(normal > 0 if dtype == "bool" else normal).astype(dtype)
            array = put(host)
            if number == 20 and not gpu_tools.STANDIN:
                array = put(host.T.copy()).T
            setattr(model, f"v{number}", chainer.Parameter(array))
            hosts.append(host)
    return model, hosts


def broadcasts(comm: Any, seed: int = 0, *, kernels: bool = False) -> None:
    """Broadcast values, and fail unless they are rank 0's, and what changed is said.

    Parameters
    ----------
    kernels
        CuPy compares them, which gives nothing on the stand-in.
    """
    model, _ = valued(comm.rank, seed)
    _, hosts = valued(0, seed)
    for changed in (comm.rank > 0, False):
        told = comm.replace_data(model)
        if not (kernels and gpu_tools.STANDIN):
            assert told is changed, f"{comm.name}: replaced is {told}, not {changed}"
        for number, host in enumerate(hosts):
            got = getattr(model, f"v{number}").array
            same(got, host, what=f"{comm.name}: broadcast of {host.dtype} v{number}")


def wire_dtype(name: str) -> np.dtype:
    return np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)


_SPIN = r"""
extern "C" __global__ void spin(unsigned long long nanoseconds)
{
    unsigned long long begin, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
    do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)); while (now - begin < nanoseconds);
}
"""


@functools.cache
def _spin() -> Any:
    return cupy.RawKernel(_SPIN, "spin")


def spin(seconds: float) -> None:
    """Keep this thread's stream busy."""
    _spin()((1,), (1,), (np.uint64(seconds * 1e9),))
    stream = cupy.cuda.get_current_stream().ptr
    if gpu_tools.STANDIN and stream:
        gpu_tools.gpu_standin.library.kernel(stream, int(seconds * 1000))


@contextmanager
def stream_of_its_own() -> Iterator[None]:
    """Compute on a stream that waits for no other."""
    with cupy.cuda.Stream(non_blocking=True) as stream:
        yield
        stream.synchronize()


def interrupted(call: Callable[[], Any], after: float = 0.3) -> float:
    """Send this process SIGINT while it is in ``call``; return the seconds until that is seen."""
    sent: list[float] = []

    def send() -> None:
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    timer = threading.Timer(after, send)
    timer.start()
    try:
        try:
            call()
        finally:
            seen = time.monotonic()
            early = not sent
            timer.join()
            if early:
                time.sleep(0.1)  # let it come while it is expected
    except KeyboardInterrupt:
        assert not early, "it was over before the interrupt came"
        return seen - sent[0]
    raise AssertionError("no KeyboardInterrupt")


def free_memory() -> int:
    """Bytes of the GPU that are free when CuPy's pools hold nothing that is not in use."""
    cupy.cuda.Device().synchronize()
    cupy.get_default_memory_pool().free_all_blocks()
    cupy.get_default_pinned_memory_pool().free_all_blocks()
    return cupy.cuda.runtime.memGetInfo()[0]
