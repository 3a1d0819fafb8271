"""Ranks of one host meet in memory that they share: each shows a word and sees the others'.

That is a small all-reduce, without MPI's messages. A rank has one line of memory for each of its
communicators, to which only it writes: the number of a meeting and its word, for the last
meeting of even and of odd number. It shows its next word only when it has seen all words of the
meeting before: then nobody reads any more what it overwrites.

A word is written before its number, and read after it. x86 keeps stores in order, and loads
too; elsewhere that takes fences, which Python has no means to ask for: there are no meetings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nbmn.communicators.lines import Lines

LINE = 8
"""Words of a line, which is one of the cache: twice a number and a word, the rest is empty."""

_EPOCH = 2**32


class Meetings:
    """The meetings of one communicator, on one of its ranks.

    Parameters
    ----------
    own
        This rank's line.
    place, lines
        Whose line it is; None if it need not be given back.
    progress
        Called while the others have not come.
    """

    def __init__(
        self,
        own: memoryview,
        place: int = 0,
        lines: Lines | None = None,
        progress: Callable[[], object] = int,
    ) -> None:
        self.own = own
        self.place = place
        """Of this rank's line among those of its process."""
        self._epoch = 1
        self.begun = self.ended = _EPOCH
        """Number of the last meeting begun, and seen to its end."""
        self.seen = 0
        """How many ranks' words are there in the one after ``ended``."""
        self.everyone: list[memoryview] = []
        """Lines in rank order; none before they are known."""
        self.progress = progress
        self._lines = lines

    def reset(self) -> None:
        """Begin anew, as on all ranks; whatever was shown before means nothing any more."""
        self._epoch += 1
        self.begun = self.ended = self._epoch * _EPOCH
        self.seen = 0

    def settle(self, under_way: Iterable[Meeting]) -> None:
        """Forget a meeting that was not begun to its end; these are."""
        self.begun = max([self.ended, *(meeting.number for meeting in under_way)])

    def close(self) -> None:
        """Give the line back."""
        if self._lines is not None:
            self._lines.give_back(self.place)


class Meeting:
    """One meeting under way, in the form of an MPI request.

    No step of it calls anything between what belongs together, so that a KeyboardInterrupt
    finds it either begun or not, see :class:`~nbmn.communicators.ledger.Ledger`; except where a
    tracer written in Python is called for each line.
    """

    __slots__ = ("_at", "_meetings", "_word", "number", "words")

    def __init__(self, meetings: Meetings, word: int) -> None:
        self._meetings = meetings
        self._word = word
        self.number = number = meetings.begun + 1
        self._at = at = 2 * (number & 1)
        self.words: list[int] = []
        """Of all ranks, in rank order, when it is over."""
        meetings.begun = number
        if meetings.ended == number - 1:
            own = meetings.own
            own[at + 1] = word
            own[at] = number

    def Test(self) -> bool:
        """Say whether all ranks have shown their words."""
        meetings, number, at = self._meetings, self.number, self._at
        if meetings.ended >= number:
            return True
        if meetings.ended < number - 1:
            return False
        own, everyone = meetings.own, meetings.everyone
        if own[at] != number:  # an earlier one was under way when this began
            own[at + 1] = self._word
            own[at] = number
        while everyone[meetings.seen][at] == number:
            if meetings.seen == len(everyone) - 1:
                self.words = [line[at + 1] for line in everyone]
                meetings.seen = 0
                meetings.ended = number
                return True
            meetings.seen += 1
        meetings.progress()
        return False
