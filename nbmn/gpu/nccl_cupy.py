"""CuPy's driver of NCCL, of CuPy 13 and 14."""

from __future__ import annotations

import ctypes
import functools
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

from nbmn.gpu.nccl import ID_BYTES, IN_PROGRESS, SUCCESS, NcclFailure


@functools.cache
def _nccl() -> ModuleType:
    with warnings.catch_warnings():
        # It warns where the library is not found; `problem` says so where it matters.
        warnings.simplefilter("ignore")
        from cupy.cuda import nccl
    return nccl


@functools.cache
def _takes_tuples() -> bool:
    import cupy

    return int(cupy.__version__.partition(".")[0]) < 14


class CupyNccl:
    """See :class:`~nbmn.gpu.nccl.NcclApi`. Communicators block while they are made."""

    def problem(self) -> str | None:
        """Return why NCCL cannot be used here, or None."""
        try:
            available = _nccl().available
        except ImportError as error:
            return f"CuPy cannot be imported ({error})"
        if not available:
            return "CuPy finds no libnccl.so.2; install nvidia-nccl-cu13 (or -cu12)"
        return None

    def version(self) -> int:
        """Return NCCL's version."""
        return _nccl().get_version()

    def unique_id(self) -> bytes:
        """Return what names a new communicator to all its ranks."""
        given = _call(_nccl().get_unique_id)
        # CuPy 13 returns a tuple of signed numbers.
        return given if isinstance(given, bytes) else bytes(n % 256 for n in given)

    def init(self, size: int, unique_id: bytes, rank: int) -> CupyComm:
        """Make a communicator; returns when all ranks take part."""
        if len(unique_id) != ID_BYTES:
            raise ValueError(f"NCCL's unique ids have {ID_BYTES} bytes, this has {len(unique_id)}")
        kind = _nccl().NcclCommunicator
        comm = kind.__new__(kind)
        # CuPy destroys what it forgets, at the exit of the interpreter too, where NCCL's
        # threads and the device may be gone. So it is kept for ever, unless it is given up here.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(comm))
        given: Any = unique_id
        if _takes_tuples():
            given = tuple(n - 256 if n > 127 else n for n in unique_id)
        _call(comm.__init__, size, given, rank)
        return CupyComm(comm)

    def describe(self, status: int) -> str:
        """Return NCCL's words for a status."""
        try:
            return str(_nccl().NcclError(status))
        except KeyError:  # of those that CuPy does not know
            return {7: "in progress", 8: "timed out"}.get(status, "unknown")

    def group_start(self) -> None:
        """Begin a group of calls of this thread."""
        _call(_nccl().groupStart)

    def group_end(self) -> None:
        """Enqueue the group's calls."""
        _call(_nccl().groupEnd)


class CupyComm:
    """See :class:`~nbmn.gpu.nccl.NcclComm`."""

    def __init__(self, comm: Any) -> None:
        self._comm = comm

    def all_reduce(self, send: int, recv: int, count: int, kind: int, op: int, stream: int) -> None:
        """Enqueue the sum of all ranks."""
        _call(self._comm.allReduce, send, recv, count, kind, op, stream)

    def reduce_scatter(
        self, send: int, recv: int, count: int, kind: int, op: int, stream: int
    ) -> None:
        """Enqueue the sum, of which each rank gets ``count`` elements."""
        _call(self._comm.reduceScatter, send, recv, count, kind, op, stream)

    def all_gather(self, send: int, recv: int, count: int, kind: int, stream: int) -> None:
        """Enqueue putting the ``count`` elements of each rank together."""
        _call(self._comm.allGather, send, recv, count, kind, stream)

    def broadcast(
        self, send: int, recv: int, count: int, kind: int, root: int, stream: int
    ) -> None:
        """Enqueue a broadcast."""
        _call(self._comm.broadcast, send, recv, count, kind, root, stream)

    def send(self, send: int, count: int, kind: int, peer: int, stream: int) -> None:
        """Enqueue a message to one rank."""
        _call(self._comm.send, send, count, kind, peer, stream)

    def recv(self, recv: int, count: int, kind: int, peer: int, stream: int) -> None:
        """Enqueue receiving a message from one rank."""
        _call(self._comm.recv, recv, count, kind, peer, stream)

    def state(self) -> int:
        """Return SUCCESS, IN_PROGRESS or an error's status."""
        try:
            self._comm.check_async_error()
        except KeyError as error:
            return error.args[0]
        except _nccl().NcclError as error:
            return error.status
        return SUCCESS

    def abort(self) -> None:
        """End what is under way and give the communicator up; may block."""
        self._comm.abort()
        self._forget()

    def destroy(self) -> None:
        """Give the communicator up when what is under way is done; may block."""
        self._comm.destroy()
        self._forget()

    def _forget(self) -> None:
        # NCCL knows it no more, so that CuPy has nothing to destroy.
        ctypes.pythonapi.Py_DecRef(ctypes.py_object(self._comm))


def _call(function: Callable[..., Any], *args: Any) -> Any:
    try:
        return function(*args)
    except KeyError as error:
        # CuPy makes errors of all statuses but success, and does not know the newer ones.
        status = error.args[0]
        if status != IN_PROGRESS:
            raise NcclFailure(status, CupyNccl().describe(status)) from error
        return None
    except _nccl().NcclError as error:
        raise NcclFailure(error.status, str(error)) from error
