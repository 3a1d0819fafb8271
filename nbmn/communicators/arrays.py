"""Arrays as they travel: NumPy's as they are, CuPy's through host memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import numpy as np

from nbmn.gpu.placement import on_device, to_device, to_host

_WIDER = {
    np.dtype(narrow): np.dtype(wide)
    for narrow, wide in [
        ("float16", "float32"),
        ("int8", "int32"),
        ("int16", "int32"),
        ("uint8", "uint32"),
        ("uint16", "uint32"),
    ]
}


class Form(NamedTuple):
    """An array without its contents."""

    shape: tuple[int, ...]
    dtype: np.dtype
    on_device: bool
    """It is a CuPy array."""

    @property
    def nbytes(self) -> int:
        """Bytes of its contents."""
        return prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Message:
    """What travels in one piece: an array, or a tuple of arrays."""

    forms: tuple[Form, ...]
    is_tuple: bool

    @property
    def on_device(self) -> bool:
        """All of it is CuPy arrays, and it is not empty."""
        return bool(self.forms) and all(form.on_device for form in self.forms)

    @property
    def nbytes(self) -> int:
        """Bytes of its contents."""
        return sum(form.nbytes for form in self.forms)

    @property
    def dtypes(self) -> str:
        """Its dtypes, as text."""
        return _joined([str(form.dtype) for form in self.forms], self.is_tuple)

    @property
    def shapes(self) -> str:
        """Its shapes, as text."""
        return _joined([str(form.shape) for form in self.forms], self.is_tuple)


def _joined(words: Sequence[str], is_tuple: bool) -> str:
    return f"[{', '.join(words)}]" if is_tuple else words[0]


def look(x: Any) -> tuple[Message, list[Any]]:
    """Return what ``x`` is, and its arrays as they are.

    Raises
    ------
    TypeError
        ``x`` is neither an array nor a tuple or list of arrays, or is of Python objects.
    """
    is_tuple = isinstance(x, (tuple, list))
    arrays = list(x) if is_tuple else [x]
    for array in arrays:
        require_array(array, f"{type(x).__name__} of " if is_tuple else "")
    forms = tuple(Form(a.shape, a.dtype, on_device(a)) for a in arrays)
    return Message(forms, is_tuple), arrays


def read(x: Any) -> tuple[Message, list[np.ndarray]]:
    """Return what ``x`` is, and its contents: host arrays, each contiguous in C order.

    Raises
    ------
    TypeError
        As :func:`look`.
    """
    message, arrays = look(x)
    # ascontiguousarray would turn 0-d into 1-d.
    return message, [np.array(to_host(a), order="C", copy=None) for a in arrays]


def flatten(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Return the bytes of contiguous arrays, one after the other; of one array, a view."""
    if len(arrays) == 1:
        return as_bytes(arrays[0])
    return np.concatenate([np.empty(0, np.uint8), *map(as_bytes, arrays)])


def restore(message: Message, data: np.ndarray) -> Any:
    """Return the array or the tuple of arrays with these bytes; views where they can be."""
    arrays = []
    begin = 0
    for form in message.forms:
        end = begin + form.nbytes
        arrays.append(_restore_one(form, data[begin:end]))
        begin = end
    return tuple(arrays) if message.is_tuple else arrays[0]


def _restore_one(form: Form, data: np.ndarray) -> Any:
    if data.size == 0:
        array = np.zeros(form.shape, form.dtype)
    else:
        array = data.view(form.dtype).reshape(form.shape)
        if not array.flags.aligned:
            array = array.copy()
    return to_device(array) if form.on_device else array


def as_bytes(values: np.ndarray) -> np.ndarray:
    """View a contiguous array of any dtype as flat uint8."""
    if values.nbytes == 0:
        return np.empty(0, np.uint8)
    return values.reshape(-1).view(np.uint8)


def require_array(x: Any, within: str = "") -> None:
    """Raise TypeError unless ``x`` (``within`` a tuple) is an array that communicators accept."""
    kind = type(x).__name__
    if kind in ("Variable", "Parameter"):
        raise TypeError(f"takes arrays, not {within}chainer.{kind}: pass its .array")
    if not isinstance(x, (np.ndarray, np.generic)) and not on_device(x):
        raise TypeError(f"takes arrays, not {within}{kind}")
    if isinstance(x, np.ma.MaskedArray):
        raise TypeError("takes arrays without a mask: pass x.filled()")
    if x.dtype.hasobject:
        raise TypeError("takes arrays of numbers, not of Python objects")


def summing_dtype(dtype: np.dtype) -> np.dtype:
    """Return the dtype in which values of ``dtype`` are summed over ranks.

    MPI has no float16, and sums of float16 lose what the ranks contribute. Short integers
    do not wrap around in every MPI: Open MPI saturates them.

    Raises
    ------
    TypeError
        Values of this dtype cannot be summed.
    """
    if dtype.kind == "b":
        raise TypeError(
            "arrays of dtype bool cannot be summed over ranks: convert them to integers to count"
        )
    if dtype.kind not in "iufc":
        remedy = ": convert them to float32" if dtype.name == "bfloat16" else ""
        raise TypeError(f"arrays of dtype {dtype} cannot be summed over ranks{remedy}")
    native = dtype.newbyteorder("=")
    return _WIDER.get(native, native)
