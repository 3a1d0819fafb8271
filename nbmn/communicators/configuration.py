"""What can be set on one communicator."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from nbmn.communicators.parameters import BFLOAT16
from nbmn.gpu.packing import as_dtype


def _grad_dtype(value: Any) -> np.dtype | None:
    if value is None:
        return None
    try:
        dtype = as_dtype(value)
    except ImportError:
        raise ValueError(
            f"allreduce_grad_dtype {value} needs the package ml_dtypes: pip install ml_dtypes"
        ) from None
    except TypeError:
        raise _no_grad_dtype(value) from None
    if dtype.name == BFLOAT16:
        return dtype
    if dtype.kind != "f" or dtype.itemsize > 8:
        raise _no_grad_dtype(dtype)
    return dtype.newbyteorder("=")


def _no_grad_dtype(value: Any) -> ValueError:
    return ValueError(
        "allreduce_grad_dtype must be float16, float32, float64, bfloat16 or None, not "
        f"{value}: it is no such dtype"
    )


def _switch(value: Any) -> bool:
    return bool(operator.truth(value))


def _seconds(value: Any) -> float | None:
    if value is None:
        return None
    seconds = float(value)
    if not seconds > 0:
        raise ValueError(f"timeout must be a positive number of seconds or None, not {value}")
    return seconds


_KNOWN: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "allreduce_grad_dtype": (None, _grad_dtype),
    "batched_copy": (True, _switch),
    "timeout": (None, _seconds),
    "verify": (False, _switch),
}


class Configuration:
    """Named values of one communicator; local.

    ``allreduce_grad_dtype``
        dtype to which gradients are rounded before they are averaged; None for their own.
    ``batched_copy``
        Without effect: gradients are always packed together.
    ``timeout``
        Seconds to wait for the other ranks in one collective; None for ever.
    ``verify``
        Compare every call across ranks before data moves.

    A script may keep values of its own beside these, in a ``config_scope``.
    """

    def __init__(self, values: Mapping[str, Any] | None = None) -> None:
        self._values = {name: default for name, (default, _) in _KNOWN.items()}
        for name, value in (values or {}).items():
            self.put(name, value)

    def set(self, name: str, value: Any) -> None:
        """Set a value by a name that is known.

        Raises
        ------
        ValueError
            There is no such name, or the value cannot be had.
        """
        if name not in self._values:
            raise ValueError(
                f"unknown configuration {name!r}; there are {', '.join(sorted(self._values))}"
            )
        self.put(name, value)

    def put(self, name: str, value: Any) -> None:
        """Set a value by any name."""
        self._values[name] = _KNOWN[name][1](value) if name in _KNOWN else value

    def get(self, name: str) -> Any:
        """Return a value.

        Raises
        ------
        KeyError
            There is no such name.
        """
        try:
            return self._values[name]
        except KeyError:
            raise KeyError(f"unknown configuration {name!r}") from None

    def all(self) -> dict[str, Any]:
        """Return a copy of all values."""
        return dict(self._values)

    def own(self) -> dict[str, Any]:
        """Return the values that a script keeps beside the known ones."""
        return {name: value for name, value in self._values.items() if name not in _KNOWN}

    def copy(self) -> Configuration:
        """Return a configuration with the same values."""
        return Configuration(self._values)
