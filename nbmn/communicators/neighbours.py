"""The ranks of one host, as one of them sees the others' memory."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from nbmn.communicators import objects
from nbmn.communicators.link import Link
from nbmn.communicators.shared_memory import (
    MOST_SEGMENTS,
    Segment,
    SharedMemoryError,
    open_segment,
)
from nbmn.communicators.slots import SLOT, Slots

# A board is what a rank tells its neighbours before each averaging: int64 at these places.
_READY, _FRESH, _SERIAL, _FD, _NBYTES = range(5)
_SERIALS = slice(8, 8 + MOST_SEGMENTS)
"""Of all its segments; others can be unmapped."""
BOARD = 4096
_ALL = BOARD + 2 * SLOT


class Neighbours:
    """Access to the memory of the ranks of this host; its methods are local."""

    def __init__(
        self, own: int, pids: Sequence[int], board: Segment, boards: Sequence[np.ndarray]
    ) -> None:
        self.own = own
        self._pids = pids
        self._board = board  # keeps its file open for the others
        self._boards = [memory[:BOARD].view(np.int64) for memory in boards]
        self.slots = Slots(own, [memory[BOARD:] for memory in boards])
        self._windows: list[dict[int, np.ndarray]] = [{} for _ in pids]

    def publish(self, segment: Segment, segments: Sequence[Segment]) -> None:
        """Tell where this rank's gradients are."""
        serials = [other.serial for other in segments]
        mine = self._boards[self.own]
        mine[_SERIALS] = serials + [0] * (MOST_SEGMENTS - len(serials))
        mine[:5] = (1, not segment.used, segment.serial, segment.fd, segment.nbytes)

    def publish_failure(self) -> None:
        """Tell that this rank has no memory to share this time."""
        self._boards[self.own][:2] = (0, 1)

    @property
    def news(self) -> bool:
        """Some rank's window is new, or it has none: the ranks have to agree on what they do.

        The same on all ranks of the host, once they have published.
        """
        return any(board[_FRESH] for board in self._boards)

    def windows(self, segment: Segment | None) -> list[np.ndarray] | None:
        """Return each rank's window; None if some rank has none, or it cannot be opened."""
        if segment is None or not all(board[_READY] for board in self._boards):
            return None
        try:
            return [
                segment.bytes if rank == self.own else self._window(rank)
                for rank in range(len(self._boards))
            ]
        except (OSError, ValueError):
            return None

    def _window(self, rank: int) -> np.ndarray:
        _, _, serial, fd, nbytes = self._boards[rank][:5].tolist()
        known = self._windows[rank]
        if serial not in known:
            alive = set(self._boards[rank][_SERIALS].tolist())
            for old in [other for other in known if other not in alive]:
                del known[old]
            known[serial] = open_segment(self._pids[rank], fd, nbytes)
        return known[serial]


def meet(link: Link, ranks: Sequence[int]) -> tuple[Neighbours | None, str | None]:
    """Open the boards of the ``ranks`` of this host; collective over ``link``.

    Returns
    -------
    Neighbours and None, or None and why there are none; the one or the other on all ranks.
    """
    board, problem = None, None
    try:
        board = Segment(0, _ALL)
        board.bytes[:BOARD].view(np.int64)[0] = link.rank + 1
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
            memory = board.bytes if rank == link.rank else open_segment(pid, fd, _ALL)
            if memory[:BOARD].view(np.int64)[0] != rank + 1:
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
