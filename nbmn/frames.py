"""Values as parts: a small pickle and their large buffers beside it, uncopied.

Classes and functions defined in the notebook travel by value (cloudpickle);
arrays stay out of the pickle (protocol 5), so a large one is never copied into
a byte string.
"""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Sequence
from typing import Any

import cloudpickle
import numpy

Parts = list[numpy.ndarray]
"""The pickle, then its out-of-band buffers in order: 1-d arrays of uint8."""


class _Pickler(cloudpickle.Pickler):
    """Sends GPU arrays as host ones: the notebook may have no GPU."""

    def reducer_override(self, obj: Any) -> Any:
        cupy = sys.modules.get("cupy")
        if cupy is not None and isinstance(obj, cupy.ndarray):
            return obj.get().__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        return super().reducer_override(obj)


def dump(value: Any) -> Parts:
    """Pickle a value; its arrays become parts without a copy.

    Raises
    ------
    TypeError
        It cannot be pickled; the message says which part.
    """
    buffers: list[pickle.PickleBuffer] = []
    stream = io.BytesIO()
    try:
        _Pickler(stream, protocol=5, buffer_callback=buffers.append).dump(_on_host(value))
    except Exception as error:
        raise TypeError(f"a {type(value).__name__} cannot be sent: {error}") from error
    raw = [stream.getbuffer(), *(buffer.raw() for buffer in buffers)]
    return [numpy.frombuffer(part, numpy.uint8) for part in raw]


def load(parts: Sequence[numpy.ndarray]) -> Any:
    """Make the value anew; its arrays are views into the parts, writable if those are."""
    head, *buffers = parts
    return pickle.loads(head, buffers=buffers)


def writable(parts: Sequence[numpy.ndarray]) -> Parts:
    """Copies of parts that came over a socket, which are read-only."""
    return [part.copy() for part in parts]


def _on_host(value: Any) -> Any:
    chainer = sys.modules.get("chainer")
    if chainer is None or not isinstance(value, chainer.Link) or value.device.name == "@numpy":
        return value
    copy = value.copy(mode="copy")
    copy.to_device("@numpy")
    return copy
