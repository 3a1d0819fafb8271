"""On which side of the bus an array lies: NumPy's on the host, CuPy's on a device."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np


def on_device(x: Any) -> bool:
    """Say whether ``x`` is a CuPy array, or what can be used like one."""
    return _of_device(type(x))


@functools.lru_cache(maxsize=64)
def _of_device(kind: type) -> bool:
    return hasattr(kind, "__cuda_array_interface__") and hasattr(kind, "get")


def to_host(x: Any) -> np.ndarray:
    """Return ``x`` as a NumPy array, without a copy where it is one."""
    return x.get() if on_device(x) else np.asarray(x)


def to_device(x: Any) -> Any:
    """Return ``x`` as a CuPy array on the current device."""
    import cupy

    return cupy.asarray(x)
