"""NVIDIA's own driver of NCCL, the package ``nccl4py``; communicators never block."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

from nbmn.gpu.nccl import IN_PROGRESS, SUCCESS, NcclFailure

_PAUSE = 200e-6


@functools.cache
def _nccl() -> ModuleType:
    # Its public face takes arrays with a known dtype; this takes addresses.
    from nccl.bindings import nccl

    return nccl


class NvidiaNccl:
    """See :class:`~nbmn.gpu.nccl.NcclApi`."""

    def problem(self) -> str | None:
        """Return why NCCL cannot be used here, or None."""
        try:
            self.version()
        except (ImportError, RuntimeError) as error:
            return f"nccl4py cannot be used ({error})"
        return None

    def version(self) -> int:
        """Return NCCL's version."""
        return _nccl().get_version()

    def unique_id(self) -> bytes:
        """Return what names a new communicator to all its ranks."""
        return bytes(_call(_nccl().get_unique_id))

    def init(self, size: int, unique_id: bytes, rank: int) -> NvidiaComm:
        """Begin to make a communicator."""
        nccl = _nccl()
        config = nccl.Config()
        config.blocking = 0
        name = nccl.UniqueId.from_buffer(bytearray(unique_id))
        return NvidiaComm(_call(nccl.comm_init_rank_config, size, name, rank, config.ptr))

    def describe(self, status: int) -> str:
        """Return NCCL's words for a status."""
        return _nccl().get_error_string(status)

    def group_start(self) -> None:
        """Begin a group of calls of this thread."""
        _call(_nccl().group_start)

    def group_end(self) -> None:
        """Enqueue the group's calls."""
        _call(_nccl().group_end)


class NvidiaComm:
    """See :class:`~nbmn.gpu.nccl.NcclComm`."""

    def __init__(self, comm: Any) -> None:
        self._comm = comm

    def all_reduce(self, send: int, recv: int, count: int, kind: int, op: int, stream: int) -> None:
        """Enqueue the sum of all ranks."""
        _call(_nccl().all_reduce, send, recv, count, kind, op, self._comm, stream)

    def reduce_scatter(
        self, send: int, recv: int, count: int, kind: int, op: int, stream: int
    ) -> None:
        """Enqueue the sum, of which each rank gets ``count`` elements."""
        _call(_nccl().reduce_scatter, send, recv, count, kind, op, self._comm, stream)

    def all_gather(self, send: int, recv: int, count: int, kind: int, stream: int) -> None:
        """Enqueue putting the ``count`` elements of each rank together."""
        _call(_nccl().all_gather, send, recv, count, kind, self._comm, stream)

    def broadcast(
        self, send: int, recv: int, count: int, kind: int, root: int, stream: int
    ) -> None:
        """Enqueue a broadcast."""
        _call(_nccl().broadcast, send, recv, count, kind, root, self._comm, stream)

    def send(self, send: int, count: int, kind: int, peer: int, stream: int) -> None:
        """Enqueue a message to one rank."""
        _call(_nccl().send, send, count, kind, peer, self._comm, stream)

    def recv(self, recv: int, count: int, kind: int, peer: int, stream: int) -> None:
        """Enqueue receiving a message from one rank."""
        _call(_nccl().recv, recv, count, kind, peer, self._comm, stream)

    def state(self) -> int:
        """Return SUCCESS, IN_PROGRESS or an error's status."""
        try:
            return int(_nccl().comm_get_async_error(self._comm))
        except _nccl().NCCLError as error:
            return int(error.status)

    def abort(self) -> None:
        """End what is under way and give the communicator up; may block."""
        self._to_the_end(_nccl().comm_abort)

    def destroy(self) -> None:
        """Give the communicator up when what is under way is done; may block."""
        self._to_the_end(_nccl().comm_destroy)

    def _to_the_end(self, end: Callable[[Any], Any]) -> None:
        try:
            end(self._comm)
        except _nccl().NCCLError as error:
            if int(error.status) != IN_PROGRESS:
                raise NcclFailure(int(error.status), str(error)) from error
            # Only then: otherwise there is nothing left to be asked.
            while self.state() == IN_PROGRESS:
                time.sleep(_PAUSE)


def _call(function: Callable[..., Any], *args: Any) -> Any:
    try:
        return function(*args)
    except _nccl().NCCLError as error:
        status = int(error.status)
        if status in (SUCCESS, IN_PROGRESS):
            return None
        raise NcclFailure(status, str(error)) from error
