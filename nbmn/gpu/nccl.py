"""What is needed of NCCL, by whatever driver: addresses, counts and a stream's handle.

A communicator is not waited for here: calls may return while NCCL goes on in the
background, and ``state`` says whether it does.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

SUM = 0
AVG = 4

SUCCESS = 0
IN_PROGRESS = 7

ID_BYTES = 128

_TYPES = {
    "int8": 0,
    "uint8": 1,
    "int32": 2,
    "uint32": 3,
    "int64": 4,
    "uint64": 5,
    "float16": 6,
    "float32": 7,
    "float64": 8,
    "bfloat16": 9,
}
_PARTS = {"complex64": ("float32", 2), "complex128": ("float64", 2)}


class NcclFailure(RuntimeError):
    """NCCL reported an error."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"NCCL: {text} (status {status}; with NCCL_DEBUG=WARN it says more)")
        self.status = status


class NcclComm(Protocol):
    """A communicator of NCCL; addresses and handles are integers, counts are of elements."""

    def all_reduce(self, send: int, recv: int, count: int, kind: int, op: int, stream: int) -> None:
        """Enqueue the sum (or another ``op``) of all ranks."""

    def reduce_scatter(
        self, send: int, recv: int, count: int, kind: int, op: int, stream: int
    ) -> None:
        """Enqueue the sum, of which each rank gets ``count`` elements."""

    def all_gather(self, send: int, recv: int, count: int, kind: int, stream: int) -> None:
        """Enqueue putting the ``count`` elements of each rank together."""

    def broadcast(
        self, send: int, recv: int, count: int, kind: int, root: int, stream: int
    ) -> None:
        """Enqueue a broadcast."""

    def send(self, send: int, count: int, kind: int, peer: int, stream: int) -> None:
        """Enqueue a message to one rank."""

    def recv(self, recv: int, count: int, kind: int, peer: int, stream: int) -> None:
        """Enqueue receiving a message from one rank."""

    def state(self) -> int:
        """Return SUCCESS, IN_PROGRESS or the status of an error that came up in the background."""

    def abort(self) -> None:
        """End what is under way and give the communicator up; may block."""

    def destroy(self) -> None:
        """Give the communicator up when what is under way is done; may block."""


class NcclApi(Protocol):
    """A driver of NCCL; everything is local but ``init``."""

    def problem(self) -> str | None:
        """Return why NCCL cannot be used here, or None."""

    def version(self) -> int:
        """Return NCCL's version, as 22707 for 2.27.7."""

    def unique_id(self) -> bytes:
        """Return what names a new communicator to all its ranks."""

    def init(self, size: int, unique_id: bytes, rank: int) -> NcclComm:
        """Begin to make a communicator on this thread's device; collective, may block."""

    def describe(self, status: int) -> str:
        """Return NCCL's words for a status."""

    def group_start(self) -> None:
        """Begin a group of calls of this thread."""

    def group_end(self) -> None:
        """Enqueue the group's calls."""


def kind_of(dtype: np.dtype) -> tuple[int, int]:
    """Return NCCL's number for a dtype, and how many such elements one of the dtype is.

    Raises
    ------
    TypeError
        NCCL has no such elements.
    """
    name, parts = _PARTS.get(dtype.name, (dtype.name, 1))
    if name not in _TYPES:
        raise TypeError(f"arrays of dtype {dtype} cannot be summed by NCCL")
    return _TYPES[name], parts


def version_text(version: int) -> str:
    """Return a version of NCCL as people write it."""
    if version >= 10000:
        return f"{version // 10000}.{version // 100 % 100}.{version % 100}"
    return f"{version // 1000}.{version // 100 % 10}.{version % 100}"
