"""Asks ranks whose recordings cannot be read from here, as those of other hosts, where they are.

A rank answers while it waits for others itself. One that does not answer waits for nobody: it is
not in a collective, or it is gone.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from nbmn.communicators.recordings import Entry
from nbmn.communicators.runtime import mpi

if TYPE_CHECKING:
    from mpi4py import MPI

PATIENCE = 2.5
"""Seconds that other ranks have to answer; while they wait, they look once in a second."""

_PAUSE = 0.01
_QUESTION, _ANSWER = 1, 2


@dataclass(frozen=True, slots=True)
class _Letter:
    """What travels, both ways: where the sender is."""

    serial: int
    """Counts the questions of who asks."""
    link: int
    """The code of the communicator that is asked about."""
    now: float
    """On the sender's clock."""
    entries: tuple[Entry, ...]
    """Its last on that communicator, and its last of all."""


class Inquiry:
    """This rank's questions and answers; all methods are local.

    Parameters
    ----------
    comm
        An MPI communicator of all ranks, used for nothing else.
    recorded
        Returns what this rank has recorded, oldest first.
    """

    def __init__(self, comm: MPI.Comm, recorded: Callable[[], Sequence[Entry]]) -> None:
        self._comm = comm
        self._recorded = recorded
        self._serial = 0
        self._sent: list[MPI.Request] = []
        self._heard: dict[tuple[int, int], _Letter] = {}
        """The last question about a communicator, by its code, of each rank."""
        self._busy = threading.Lock()

    def answer(self) -> None:
        """Answer what other ranks have asked meanwhile."""
        if self._busy.acquire(blocking=False):
            try:
                self._answer()
            finally:
                self._busy.release()

    def ask(
        self, ranks: Sequence[int], link: int, number: int
    ) -> Mapping[int, Sequence[Entry] | None]:
        """Return what each of these ranks of the world has recorded, None where it is silent.

        One that has asked about the same, and has given up since, is where it was then.

        Parameters
        ----------
        link
            The code of a communicator.
        number
            Of the collective on it that this rank is in; 0 for a message.
        """
        answers: dict[int, Sequence[Entry] | None] = dict.fromkeys(ranks)
        with self._busy:
            self._serial += 1
            question = self._letter(self._serial, link)
            for rank in ranks:
                self._send(question, rank, _QUESTION)
            until = time.monotonic() + PATIENCE
            while None in answers.values() and time.monotonic() < until:
                self._answer()
                for rank, letter in self._received(_ANSWER):
                    if letter.serial == self._serial:
                        answers[rank] = letter.entries
                time.sleep(_PAUSE)
            for rank in ranks if number else ():
                heard = self._heard.get((rank, link))
                if answers[rank] is None and heard is not None:
                    came = any(e.link == link and e.number >= number for e in heard.entries)
                    answers[rank] = heard.entries if came else None
        return answers

    def _answer(self) -> None:
        for rank, letter in self._received(_QUESTION):
            self._heard[rank, letter.link] = letter
            self._send(self._letter(letter.serial, letter.link), rank, _ANSWER)

    def _letter(self, serial: int, link: int) -> _Letter:
        return _Letter(serial, link, time.monotonic(), _excerpt(self._recorded(), link))

    def _send(self, letter: _Letter, rank: int, tag: int) -> None:
        self._sent = [request for request in self._sent if not request.Test()]
        self._sent.append(self._comm.isend(letter, rank, tag))

    def _received(self, tag: int) -> list[tuple[int, _Letter]]:
        MPI = mpi()
        letters = []
        status: Any = MPI.Status()
        while (message := self._comm.improbe(MPI.ANY_SOURCE, tag, status)) is not None:
            letters.append((status.Get_source(), _on_this_clock(message.recv())))
        return letters


def _excerpt(entries: Sequence[Entry], link: int) -> tuple[Entry, ...]:
    there = [entry for entry in entries if entry.link == link and entry.number]
    chosen = [*there[-1:], *entries[-1:]]
    return tuple(dict.fromkeys(chosen))


def _on_this_clock(letter: _Letter) -> _Letter:
    """Return a letter that came at once, with its times on the clock of this host."""
    late = time.monotonic() - letter.now

    def shifted(entry: Entry) -> Entry:
        end = None if entry.end is None else entry.end + late
        return replace(entry, begin=entry.begin + late, end=end)

    return replace(letter, now=letter.now + late, entries=tuple(map(shifted, letter.entries)))
