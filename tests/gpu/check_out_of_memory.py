"""A GPU that is really full: the account says who holds what, and the failed call lets go of it."""

from __future__ import annotations

import time
from typing import Any

import chainer
import cupy
import numpy as np
from gpu_tools import STANDIN, Report
from gpu_values import free_memory

from nbmn.engine.out_of_memory import asked, explain, wanted_memory

GIB, MIB = 1 << 30, 1 << 20
LEFT = 6 * GIB
"""Of the GPU, for the failed call."""


def run(report: Report) -> None:
    pool = cupy.get_default_memory_pool()
    if STANDIN:
        pool.set_limit(size=20 * MIB)
    unit = MIB if STANDIN else GIB
    fill = 4 * MIB if STANDIN else max(0, free_memory() - LEFT)
    model = chainer.links.Linear(64, 32).to_device("@cupy:0")
    namespace: dict[str, Any] = {"model": model, "filling": cupy.empty(fill, np.uint8)}
    error = failed(64 * unit, unit)
    assert wanted_memory(error)
    assert asked(error) == 64 * unit
    before = pool.used_bytes()
    began = time.perf_counter()
    told = explain(error, namespace, 3)
    seconds = time.perf_counter() - began
    released = before - pool.used_bytes()
    assert released == 3 * unit, released
    for text in ("rank 3, GPU 0", "asked for", "`filling`", "`h` in forward()", "a smaller batch"):
        assert text in told, f"{text!r} is not in:\n{told}"
    report("account", text=told.splitlines(), seconds=seconds, released_bytes=released)
    # What was let go of is there for the next try.
    again = cupy.empty(2 * unit, np.uint8)
    del again
    namespace.clear()
    if not STANDIN:
        cupy.asarray(np.ones(3)).sum().get()


def failed(wanted: int, held: int) -> Exception:
    """An error of CuPy's pool, out of functions that hold something."""

    def forward(depth: int) -> cupy.ndarray:
        h = cupy.empty(held, np.uint8)
        return forward(depth - 1) if depth else h[:1] + cupy.empty(wanted, np.uint8)

    try:
        forward(2)
    except MemoryError as error:
        return error
    raise AssertionError(f"there were {wanted} bytes")
