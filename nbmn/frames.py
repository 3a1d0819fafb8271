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


class Absent:
    """Stands in the notebook for ``comm``, which classes made on ranks may name."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            "a communicator stays on its rank: what needs it runs there, in a %%mn cell"
        )

    def __reduce__(self) -> Any:
        return _comm_here, ()


def _comm_here() -> Any:
    """Return ``comm`` of this process's namespace if it is a rank."""
    return _namespace().get("comm") if _is_comm(_namespace().get("comm")) else Absent()


def _is_comm(obj: Any) -> bool:
    communicators = sys.modules.get("nbmn.communicators")
    return communicators is not None and isinstance(obj, communicators.Communicator)


def _namespace() -> dict[str, Any]:
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return {} if shell is None else shell.user_ns


class _Pickler(cloudpickle.Pickler):
    """Sends GPU arrays as host ones, since the notebook may have no GPU, and ``comm`` by name."""

    def reducer_override(self, obj: Any) -> Any:
        cupy = sys.modules.get("cupy")
        if cupy is not None and isinstance(obj, cupy.ndarray):
            return obj.get().__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        if _is_comm(obj) and obj is _namespace().get("comm"):
            return _comm_here, ()
        return super().reducer_override(obj)


def dump(value: Any) -> Parts:
    """Pickle a value; its arrays become parts without a copy.

    Raises
    ------
    TypeError
        It cannot be pickled; the message says which part.
    """
    if _is_comm(value):
        raise TypeError("a communicator stays on its rank")
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
