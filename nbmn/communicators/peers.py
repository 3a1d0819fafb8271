"""Where the other ranks are, as far as their recordings can be read from here."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nbmn.communicators.inquiry import Inquiry
from nbmn.communicators.recorder import Recorder
from nbmn.communicators.recordings import Entry, is_alive, read_recorder
from nbmn.communicators.rounds import run, tell
from nbmn.communicators.topology import host_identity

if TYPE_CHECKING:
    from mpi4py import MPI

    from nbmn.communicators.link import Link


@dataclass(frozen=True, slots=True)
class Peers:
    """The recordings of all ranks."""

    recorder: Recorder
    """This rank's own."""
    paths: tuple[str | None, ...]
    """By world rank; None where they cannot be read from here, as on other hosts."""
    inquiry: Inquiry | None = None
    """Asks the ranks whose cannot be read; None if all can, on all ranks."""

    def answer(self) -> None:
        """Answer ranks that ask where this one is; local."""
        if self.inquiry is not None:
            self.inquiry.answer()

    def explain(self, link: Link) -> str:
        """Say whom this rank waits for on a link; local."""
        mine = self.recorder.last()
        if mine is None or mine.end is not None:
            return "the other ranks have not come"
        if mine.peer is not None:
            told = self._ask(link, mine, [mine.peer])
            return unanswered(mine, link.rank, told[mine.peer], time.monotonic())
        others = [rank for rank in range(link.size) if rank != link.rank]
        return missing(mine, self._ask(link, mine, others), time.monotonic())

    def deadlock(self, link: Link) -> str | None:
        """Say which ranks wait for each other's messages for ever, this one among them; local.

        None where this is not certain, or cannot be seen from here.
        """
        mine = self.recorder.last()
        if mine is None or mine.end is not None:
            return None

        def told(rank: int) -> Sequence[Entry] | None:
            return self._told(link, rank)

        return circle(mine, link.rank, link.calls, told, time.monotonic())

    def departed(self, link: Link) -> str | None:
        """Say which ranks left, or died in, the collective that this rank is still in; local.

        It is one from which no rank returns before all have come.
        """
        mine = self.recorder.last()
        if mine is None or mine.end is not None or not mine.number:
            return None
        gone = []
        for rank, member in enumerate(link.members):
            path = self.paths[member]
            if rank == link.rank or path is None:
                continue
            if not is_alive(path):
                gone.append(f"rank {rank} has ended")
            elif left(mine, self._told(link, rank) or (), time.monotonic()):
                gone.append(f"rank {rank} has left {mine.name} before its end")
        return "; ".join(gone) or None

    def _ask(
        self, link: Link, mine: Entry, ranks: Sequence[int]
    ) -> dict[int, Sequence[Entry] | None]:
        """Return what ranks have recorded, by itself or because they answer."""
        told = {rank: self._told(link, rank) for rank in ranks}
        silent = {link.members[rank]: rank for rank, entries in told.items() if entries is None}
        if silent and self.inquiry is not None:
            answers = self.inquiry.ask(list(silent), mine.link, mine.number)
            told |= {silent[member]: entries for member, entries in answers.items()}
        return told

    def _told(self, link: Link, rank: int) -> Sequence[Entry] | None:
        path = self.paths[link.members[rank]]
        if path is not None:
            with contextlib.suppress(OSError, ValueError):
                return read_recorder(path)
        return None


def introduce(control: MPI.Comm, recorder: Recorder) -> Peers:
    """Tell the ranks where each records; collective over ``control``."""
    here = host_identity()
    path = None if recorder.path is None else str(recorder.path)
    told = run(tell(control, (here, path)))
    paths = tuple(path if host == here else None for host, path in told)
    # The same on all ranks.
    all_read = len({host for host, _ in told}) == 1 and None not in paths
    inquiry = None if all_read else Inquiry(control.Dup(), recorder.entries)
    return Peers(recorder, paths, inquiry)


def unanswered(mine: Entry, rank: int, told: Sequence[Entry] | None, now: float) -> str:
    """Say where the two ends of a message are.

    Parameters
    ----------
    mine
        The message that this rank waits for.
    rank
        This rank.
    told
        What the other end has recorded, oldest first; None if it does not answer.
    now
        On the clock of ``time.monotonic``, in seconds.
    """
    assert mine.peer is not None
    text = f"rank {rank} is at {mine}, "
    if told is None:
        return f"{text}{_silent([mine.peer])}"
    return f"{text}rank {mine.peer} {_whereabouts(told, now)}"


def circle(
    mine: Entry,
    rank: int,
    calls: int,
    told: Callable[[int], Sequence[Entry] | None],
    now: float,
) -> str | None:
    """Say which ranks wait for each other, beginning with this one; None if not for certain.

    Parameters
    ----------
    mine
        What this rank waits in.
    rank
        This rank.
    calls
        Collectives that this rank has begun.
    told
        Returns what a rank has recorded, as for :func:`unanswered`.
    now
        On the clock of ``time.monotonic``, in seconds.
    """
    waits = {rank: mine}
    at = mine
    while at.peer is not None and at.peer not in waits:
        entries = told(at.peer)
        last = entries[-1] if entries else None
        # A short object may still be under way from a rank that already waits elsewhere.
        if last is None or last.end or last.link != mine.link or now - last.begin < _SETTLED:
            return None
        waits[at.peer] = at = last
    closed = at.number > calls if at.number else at.peer == rank
    if len(waits) < 2 or not closed or (len(waits) == 2 and _meet(mine, at)):
        return None
    places = ", ".join(f"rank {rank} at {entry}" for rank, entry in waits.items())
    return (
        f"waits for ever, because ranks wait for each other: {places}; "
        "what one sends the other must receive, in the same order"
    )


_SETTLED = 0.5  # seconds


def left(mine: Entry, told: Sequence[Entry], now: float) -> bool:
    """Say whether a rank was through with the collective ``mine`` so long ago that it cannot have
    seen its end."""
    return any(
        entry.link == mine.link
        and entry.number == mine.number
        and entry.end is not None
        and now - entry.end > TRANSFER
        for entry in told
    )


TRANSFER = 5.0
"""Seconds from the end of a collective on one rank to that on the last, at most."""


def _meet(one: Entry, other: Entry) -> bool:
    """Say whether one of two messages between two ranks is the other's."""
    ways = {one.operation[:4], other.operation[:4]}
    return ways == {"send", "recv"} and len({one.tag, other.tag} - {None}) < 2


def missing(mine: Entry, told: Mapping[int, Sequence[Entry] | None], now: float) -> str:
    """Say which ranks have not come to an operation.

    Parameters
    ----------
    mine
        The operation that this rank waits in.
    told
        What each other rank has recorded, oldest first; None if it does not answer.
    now
        On the clock of ``time.monotonic``, in seconds.
    """
    absent: dict[str, list[int]] = {}
    unknown = [rank for rank, entries in told.items() if entries is None]
    for rank, entries in told.items():
        if entries is None:
            continue
        there = max((e.number for e in entries if e.link == mine.link), default=0)
        if mine.number and there >= mine.number:
            continue
        absent.setdefault(_whereabouts(entries, now), []).append(rank)
    ranks = sorted(rank for some in absent.values() for rank in some)
    if not ranks:
        text = f"all others have come to {mine.name}" if not unknown else f"in {mine.name}"
    else:
        places = "; ".join(f"{_ranks(some)} {where}" for where, some in absent.items())
        verb = "has" if len(ranks) == 1 else "have"
        text = f"{_ranks(ranks)} {verb} not come to {mine.name} ({places})"
        if not mine.number:
            text = f"in {mine.name} ({places})"
    if unknown:
        text += f"; {_silent(unknown)}"
    return text


def _whereabouts(entries: Sequence[Entry], now: float) -> str:
    if not entries:
        return "at no collective yet"
    last = entries[-1]
    if last.end is None:
        return f"at {last} since {now - last.begin:.3g} s"
    return f"outside since {now - last.end:.3g} s, the last was {last}"


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def _silent(ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return f"{_ranks(ranks)} does not answer (it computes, or is gone)"
    return f"{_ranks(ranks)} do not answer (they compute, or are gone)"
