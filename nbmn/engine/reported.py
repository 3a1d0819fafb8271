"""Values that a training loop reports: taken at once, and read when they are sent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

_UNCHANGING = frozenset({float, int, bool, np.float64, np.float32, np.float16})
"""Types whose values may be read later."""


def hold(values: dict[str, Any]) -> dict[str, Any]:
    """Return what to keep of the values until they are sent; called between two steps.

    A number, read now, since its array may be overwritten; of a Chainer variable the array's,
    since the variable would keep the graph; of a GPU array itself, since reading it waits for
    the device, and the training loop must not.

    Raises
    ------
    TypeError
        A value is not one number.
    """
    for value in values.values():
        if type(value) not in _UNCHANGING:
            return {name: _held(name, value) for name, value in values.items()}
    return values


def read(values: Mapping[str, Any]) -> dict[str, float]:
    """Return the values as numbers; NaN for what is none."""
    return {str(name): _scalar(value) for name, value in values.items()}


def _held(name: str, value: Any) -> Any:
    array = getattr(value, "array", value)
    if getattr(array, "size", 1) != 1 or isinstance(array, (str, bytes)):
        what = f"an array of shape {array.shape}" if hasattr(array, "shape") else repr(array)
        raise TypeError(f"{name} must be one number, not {what}")
    return array if hasattr(array, "__cuda_array_interface__") else _scalar(array)


def _scalar(value: Any) -> float:
    try:
        return float(value.item() if hasattr(value, "item") else value)
    except Exception:  # noqa: BLE001 - the value is the user's, and charts have gaps
        return float("nan")
