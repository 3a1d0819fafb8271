"""Compares calls across ranks before data moves, where that is asked for."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Hashable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from nbmn.communicators import agreement, objects
from nbmn.communicators.errors import MismatchError

if TYPE_CHECKING:
    from nbmn.communicators.link import Link
    from nbmn.communicators.recordings import Entry

_ALIKE = ("root", "zero_fill", "max_buf_len", "operation")
_SAME_SHAPES = frozenset({"allreduce", "multi_node_mean"})
_SAME_DTYPES = frozenset({"gather", "allgather", "alltoall"})


def verifies(link: Link) -> bool:
    """Say whether calls on this link are compared: its own setting, or Chainer's debug mode."""
    if link.verify:
        return True
    chainer = sys.modules.get("chainer")
    return chainer is not None and chainer.is_debug()


def verify(
    link: Link,
    entry: Entry | None,
    method: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> None:
    """Return if all ranks make this call; collective, and the same steps for every method.

    Raises
    ------
    MismatchError
        On all ranks: the calls differ in their operation, root, shapes or dtypes.
    """
    name = method.__name__
    try:
        bound = inspect.signature(method).bind(*args, **kwargs)
        bound.apply_defaults()
        arguments = dict(list(bound.arguments.items())[1:])
    except TypeError:
        arguments = {}
    alike = (name, *alike_in(name, arguments))
    if agreement.Vote(link, ("verify", alike)).outcome().unanimous:
        return
    where = "" if entry is None else f"  at {entry.file}:{entry.line}"
    calls = objects.allgather(link, f"{_written(name, arguments)}{where}")
    lines = "\n".join(f"  rank {rank}: {call}" for rank, call in enumerate(calls))
    raise MismatchError(f"the ranks do not call the same:\n{lines}")


def alike_in(operation: str, arguments: Mapping[str, Any]) -> tuple[Hashable, ...]:
    """Return of a call's arguments what must be the same on all ranks."""
    alike: list[Hashable] = [
        (name, str(value)) for name, value in arguments.items() if name in _ALIKE
    ]
    for value in arguments.values():
        if _is_data(value) and operation in _SAME_SHAPES:
            alike.append(describe(value))
        elif _is_data(value) and operation in _SAME_DTYPES:
            parts = value if isinstance(value, (tuple, list)) else (value,)
            alike.append(tuple(sorted({str(part.dtype) for part in parts})))
    return tuple(alike)


def describe(value: Any) -> str:
    """Write an argument as an error shows it."""
    if isinstance(value, (tuple, list)) and _is_data(value):
        return f"({', '.join(map(describe, value))})"
    if _is_array(value):
        return f"{value.dtype}[{', '.join(map(str, value.shape))}]"
    if value is None or isinstance(value, (bool, int, float, str)):
        return repr(value)[:40]
    return type(value).__name__


def _written(operation: str, arguments: Mapping[str, Any]) -> str:
    return f"{operation}({', '.join(f'{k}={describe(v)}' for k, v in arguments.items())})"


def _is_array(value: Any) -> bool:
    return isinstance(value, (np.ndarray, np.generic)) or (
        hasattr(value, "dtype") and hasattr(value, "shape")
    )


def _is_data(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return bool(value) and all(map(_is_array, value))
    return _is_array(value)
