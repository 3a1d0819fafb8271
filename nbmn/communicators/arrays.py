"""Arrays on either side of the bus: NumPy as they are, CuPy through host memory."""

from __future__ import annotations

from typing import Any

import numpy as np

_ON_THE_WIRE = {np.dtype(np.float16): np.dtype(np.float32)}


def is_array(x: Any) -> bool:
    """Say whether ``x`` is an array that communicators accept."""
    return isinstance(x, (np.ndarray, np.generic)) or on_device(x)


def on_device(x: Any) -> bool:
    """Say whether ``x`` is a CuPy array."""
    return type(x).__module__.partition(".")[0] == "cupy"


def to_host(x: Any) -> np.ndarray:
    """Return ``x`` as a NumPy array, without a copy where it is one."""
    return x.get() if on_device(x) else np.asarray(x)


def to_device(x: np.ndarray) -> Any:
    """Copy ``x`` to the current CUDA device."""
    import cupy

    return cupy.asarray(x)


def summing_dtype(dtype: np.dtype) -> np.dtype:
    """Return the dtype in which values of ``dtype`` are summed over ranks.

    MPI has no float16, and sums of float16 lose what the ranks contribute.

    Raises
    ------
    TypeError
        Values of this dtype cannot be summed.
    """
    if dtype.kind not in "iufc":
        raise TypeError(f"arrays of dtype {dtype} cannot be summed over ranks")
    native = dtype.newbyteorder("=")
    return _ON_THE_WIRE.get(native, native)
