"""The memory in which the ranks of one host meet: a line for each communicator of each rank."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

import numpy as np

from nbmn.communicators.meetings import LINE, Meetings
from nbmn.communicators.rounds import tell
from nbmn.communicators.shared_memory import Segment, SharedMemoryError, open_segment
from nbmn.communicators.topology import host_identity

ORDERED = platform.machine().lower() in ("x86_64", "amd64")
"""This processor keeps the order in which memory is written and read."""

_LINES = 1024
"""Communicators that a rank can have at a time and meet on; further ones use messages."""


class Lines:
    """This process's lines, and those of the processes that it can see.

    Parameters
    ----------
    rank
        Among all ranks.
    segment
        This process's lines; None if it has none.
    memories
        The lines of ranks of this host.
    meet
        Of each rank, with whom it can meet.
    progress
        Pushes MPI's messages on: those who are awaited may wait for one.
    """

    def __init__(
        self,
        rank: int,
        segment: Segment | None,
        memories: Mapping[int, memoryview],
        meet: Sequence[frozenset[int]],
        progress: Callable[[], object],
    ) -> None:
        self._segment = segment  # keeps its file open for the others
        self._memories = memories
        self._own = memories.get(rank)
        self._meet = meet
        self._progress = progress
        self._free = list(range(_LINES))

    def line(self, place: int, rank: int | None = None) -> memoryview:
        """Return a line of this process, or of another rank."""
        memory = self._own if rank is None else self._memories[rank]
        assert memory is not None
        return memory[place * LINE : (place + 1) * LINE]

    def open(self) -> Meetings | None:
        """Return the meetings of a new communicator, None if there can be none; local.

        SIGINT must be held back.
        """
        if self._own is None or not self._free:
            return None
        place = self._free.pop()
        own = self.line(place)
        for at in range(LINE):
            own[at] = 0
        return Meetings(own, place, self, self._progress)

    def give_back(self, place: int) -> None:
        """Take back a line on which nothing is under way."""
        self._free.append(place)

    def connect(
        self, meetings: Meetings | None, members: Sequence[int], places: Sequence[int | None]
    ) -> bool:
        """Let the members' lines be known, and say whether all of them can meet; local.

        The same on all of them. None of them may begin a meeting before all have connected.
        """
        everyone = frozenset(members)
        if None in places or not all(everyone <= self._meet[rank] for rank in members):
            return False
        assert meetings is not None
        meetings.everyone = [
            self.line(place, rank) for rank, place in zip(members, places, strict=True)
        ]
        return True


def introduce(control: Any) -> Generator[Any, None, Lines]:
    """Open the lines of the ranks of this host; steps of all ranks together."""
    rank, here = control.Get_rank(), host_identity()
    segment, token = None, int.from_bytes(os.urandom(7))
    if ORDERED:
        try:
            segment = Segment(0, 8 * LINE * _LINES)
            segment.bytes.view(np.uint64)[0] = token
        except (SharedMemoryError, OSError):
            segment = None
    fd = None if segment is None else segment.fd
    told = yield from tell(control, (here, os.getpid(), fd, token))
    memories: dict[int, memoryview] = {}
    for other, (host, pid, theirs, expected) in enumerate(told):
        if segment is None or theirs is None or host != here:
            continue
        try:
            memory = segment.bytes if other == rank else open_segment(pid, theirs, segment.nbytes)
        except (OSError, ValueError):
            continue
        words = memory.view(np.uint64)
        if words[0] == expected:  # process ids mean something else in another container
            memories[other] = memoryview(words)
    # Also a barrier: what was read above is overwritten by the first communicator.
    meet = yield from tell(control, frozenset(memories))
    # Nobody ever sends anything there: a probe that finds something pushes nothing on.
    return Lines(rank, segment, memories, meet, control.Iprobe)
