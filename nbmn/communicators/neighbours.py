"""The ranks of one host, as one of them sees the others' memory."""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from nbmn.communicators import objects
from nbmn.communicators.layout import PIECE, Piece
from nbmn.communicators.link import Link
from nbmn.communicators.reduction import Accumulator
from nbmn.communicators.shared_memory import Segment, SharedMemoryError, open_segment

# A board is what a rank tells its neighbours before each averaging: int64 at these places.
_READY, _SERIAL, _FD, _NBYTES = range(4)
_SERIALS = slice(4, 16)
"""Of all its segments; others can be unmapped."""
_ADDRESSES = 16
BOARD = 64 * 1024
MOST_LARGE = BOARD // 8 - _ADDRESSES


class Neighbours:
    """Access to the memory of the ranks of this host; its methods are local."""

    def __init__(
        self, own: int, pids: Sequence[int], board: Segment, boards: Sequence[np.ndarray]
    ) -> None:
        self.own = own
        self.direct = False
        """Large gradients are read where they lie, not from windows."""
        self.accumulator = Accumulator(PIECE)
        self._pids = pids
        self._board = board  # keeps its file open for the others
        self._boards = [memory.view(np.int64) for memory in boards]
        self._windows: list[dict[int, np.ndarray]] = [{} for _ in pids]
        self._incoming = [np.empty(PIECE, np.uint8) for _ in range(2)]

    def publish(
        self, segment: Segment, segments: Sequence[Segment], large: Sequence[np.ndarray | None]
    ) -> None:
        """Tell where this rank's gradients are."""
        mine = self._boards[self.own]
        mine[_ADDRESSES : _ADDRESSES + len(large)] = [
            0 if array is None else array.__array_interface__["data"][0] for array in large
        ]
        serials = [other.serial for other in segments]
        mine[_SERIALS] = serials + [0] * (_ADDRESSES - 4 - len(serials))
        mine[:4] = (1, segment.serial, segment.fd, segment.nbytes)

    def publish_failure(self) -> None:
        """Tell that this rank has no memory to share this time."""
        self._boards[self.own][_READY] = 0

    def windows(self, segment: Segment | None) -> list[np.ndarray] | None:
        """Return each rank's window; None if some rank has none, or it cannot be opened."""
        found = []
        for rank, board in enumerate(self._boards):
            ready, serial, fd, nbytes = board[:4].tolist()
            if not ready or segment is None:
                return None
            if rank == self.own:
                found.append(segment.bytes)
                continue
            known = self._windows[rank]
            if serial not in known:
                alive = set(board[_SERIALS].tolist())
                for old in [other for other in known if other not in alive]:
                    del known[old]
                try:
                    known[serial] = open_segment(self._pids[rank], fd, nbytes)
                except (OSError, ValueError):
                    return None
            found.append(known[serial])
        return found

    def has(self, rank: int, large: int) -> bool:
        """Say whether a rank contributes one of the large gradients."""
        return bool(self._boards[rank][_ADDRESSES + large])

    def read(self, rank: int, piece: Piece) -> np.ndarray:
        """Read a piece of a large gradient from where it lies; valid until the second next call.

        Raises
        ------
        OSError
            The memory cannot be read.
        """
        self._incoming.reverse()
        nbytes = piece.size * piece.dtype.itemsize
        target = self._incoming[0][:nbytes]
        address = int(self._boards[rank][_ADDRESSES + piece.large])
        read_memory(self._pids[rank], address + piece.first * piece.dtype.itemsize, target)
        return target.view(piece.dtype)


def meet(link: Link, ranks: Sequence[int]) -> tuple[Neighbours | None, str | None]:
    """Open the boards of the ``ranks`` of this host; collective over ``link``.

    Returns
    -------
    Neighbours and None, or None and why there are none; the one or the other on all ranks.
    """
    board, problem = None, None
    try:
        board = Segment(0, BOARD)
        board.bytes.view(np.int64)[0] = link.rank + 1
    except (SharedMemoryError, OSError) as error:
        problem = str(error)
    told = objects.allgather(link, (os.getpid(), None if board is None else board.fd, problem))
    refusal = _first_problem([theirs for _, _, theirs in told])
    if refusal is not None or board is None:
        return None, refusal
    boards, problem = [], None
    try:
        for rank in ranks:
            pid, fd, _ = told[rank]
            memory = board.bytes if rank == link.rank else open_segment(pid, fd, BOARD)
            if memory.view(np.int64)[0] != rank + 1:
                raise SharedMemoryError(f"process {pid} is not rank {rank}")
            boards.append(memory)
    except (SharedMemoryError, OSError, ValueError) as error:
        problem = f"cannot open the memory of rank {rank}: {error}"
    # What has been read above is overwritten by the first averaging, hence the exchange.
    refusal = _first_problem(objects.allgather(link, problem))
    if refusal is not None:
        return None, refusal
    pids = [told[rank][0] for rank in ranks]
    return Neighbours(ranks.index(link.rank), pids, board, boards), None


def _first_problem(problems: Sequence[str | None]) -> str | None:
    return next((f"rank {r}: {text}" for r, text in enumerate(problems) if text), None)


class _Extent(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


@functools.cache
def _process_vm_readv() -> Any:
    function = ctypes.CDLL(None, use_errno=True).process_vm_readv
    extent = ctypes.POINTER(_Extent)
    function.argtypes = (ctypes.c_int, extent, ctypes.c_ulong, extent, *[ctypes.c_ulong] * 2)
    function.restype = ctypes.c_ssize_t
    return function


def read_memory(pid: int, address: int, target: np.ndarray) -> None:
    """Fill ``target`` (contiguous) from the memory of another process; local.

    Raises
    ------
    OSError
        The kernel does not allow it, or there is no such memory.
    """
    here = _Extent(target.__array_interface__["data"][0], target.nbytes)
    there = _Extent(address, target.nbytes)
    got = _process_vm_readv()(pid, here, 1, there, 1, 0)
    if got != target.nbytes:
        code = ctypes.get_errno()
        raise OSError(code, f"reading {target.nbytes} bytes of process {pid}: {os.strerror(code)}")
