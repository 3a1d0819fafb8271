"""Where a rank's arrays are looked for, what counts as their memory, and as whose."""

from __future__ import annotations

import gc
import sys
import types
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from nbmn.gpu.memory import Block, Child, Root

_FRAMEWORK = ("IPython", "ipykernel", "ipyparallel", "nbmn.engine", "asyncio", "contextlib")
_SHELLS = ("In", "get_ipython", "exit", "quit", "open")
_CONTAINERS = (list, tuple, dict, set)
ROUNDING = 512
"""Bytes; CuPy's pool gives memory in multiples of it."""
_ATTRIBUTES = {"_grad": "gradients", "_grad_var": "gradients"}


def variables(namespace: dict[str, Any]) -> list[Root]:
    """The user's variables: models first, and last what IPython keeps."""
    rows = []
    for name, value in namespace.items():
        if name not in _SHELLS and not issubclass(type(value), types.ModuleType):
            order, needed = _place(value)
            rows.append((name.startswith("_"), order, Root(name, value, needed=needed)))
    rows.sort(key=lambda row: row[:2])
    return [root for *_, root in rows]


def _place(value: Any) -> tuple[int, bool]:
    """Whose turn it is when several hold the same, and whether it is there to stay."""
    kind = type(value)  # not isinstance: it may ask the object
    chainer = sys.modules.get("chainer")
    if chainer is not None and issubclass(kind, chainer.Link):
        return 0, True
    if chainer is not None and issubclass(kind, chainer.Variable):
        return 2, False
    if hasattr(kind, "nbytes"):
        return 1, False
    return (3, False) if issubclass(kind, _CONTAINERS) else (4, True)


def local_variables(frames: Iterable[types.FrameType]) -> list[Root]:
    """The variables of the user's functions, and of the libraries' that they call."""
    return [
        Root(name, value, frame.f_code.co_name)
        for frame in frames
        if not frame.f_globals.get("__name__", "").startswith(_FRAMEWORK)
        for name, value in frame.f_locals.items()
    ]


def host_block(item: Any) -> Block | None:
    """The memory of a NumPy array."""
    if not issubclass(type(item), np.ndarray):
        return None
    whole = item
    while issubclass(type(whole.base), np.ndarray):
        whole = whole.base
    nbytes = 0 if issubclass(type(whole), np.memmap) else whole.nbytes
    return Block(id(whole), nbytes, described(item, nbytes))


class GpuBlocks:
    """The memory of CuPy's arrays on a device."""

    def __init__(self, cupy: types.ModuleType, device: int) -> None:
        self._kind = cupy.ndarray
        self._device = device

    def __call__(self, item: Any) -> Block | None:
        if not issubclass(type(item), self._kind):
            return None
        memory = item.data.mem
        nbytes = memory.size if memory.device_id == self._device else 0
        return Block(memory.ptr, nbytes, described(item, nbytes))


def described(array: Any, nbytes: int) -> str:
    """``float32 64×3×224×224``; says so if the array keeps more than it shows."""
    words = f"{array.dtype} {'×'.join(map(str, array.shape))}".strip()
    return words if nbytes - array.nbytes < ROUNDING else f"by a view: {words}"


def chainer_parts(item: Any) -> Sequence[Child] | None:
    """What a parameter, an update rule or a function of a graph holds, told apart."""
    chainer = sys.modules.get("chainer")
    kind = type(item)
    if chainer is None:
        return None
    if issubclass(kind, chainer.Variable):
        return [(_ATTRIBUTES.get(name, ""), value) for name, value in vars(item).items()]
    for part, owner in (("optimizer state", chainer.UpdateRule), ("graph", chainer.FunctionNode)):
        if issubclass(kind, owner):
            return [(part, child) for child in gc.get_referents(item)]
    return None
