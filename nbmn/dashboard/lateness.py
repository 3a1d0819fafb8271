"""Which ranks the others wait for, step by step. Pure.

A rank is late in a step when it comes to what ranks do together after the others, by more than
noise; at most half of the ranks are. It is called a straggler if that is so in most of the steps in
which any rank was late, so that of two ranks never both are.
"""

from __future__ import annotations

import bisect
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

LATE = 0.1
"""Share of the time that others wait for a rank from which on it is called a straggler; of a step's
time, what is more than noise."""


@dataclass(frozen=True, slots=True)
class Meeting:
    """A collective, as far as the ranks that are shown take part in it."""

    came: Mapping[int, float]
    """When each of them came to it, in seconds."""
    absent: tuple[int, ...]
    """Those that never did: the others waited in vain, or still wait."""
    until: float
    """When the last of those that came left it, as far as is known of those that are absent."""

    @property
    def awaited(self) -> Mapping[int, float]:
        """Until when each rank was waited for."""
        return {**dict.fromkeys(self.absent, self.until), **self.came}


@dataclass(frozen=True, slots=True)
class Late:
    """A rank that the others wait for."""

    rank: int
    seconds: float
    """That they waited for it, in all."""
    steps: int
    """In which it was late."""
    of: int
    """Steps that there are."""


@dataclass(frozen=True, slots=True)
class Lateness:
    """Who is late."""

    stragglers: tuple[Late, ...] = ()
    """The one that was waited for longest first."""
    turns: tuple[int, ...] = ()
    """Ranks that are late by turns, where there is no straggler and much is waited."""


def lateness(meetings: Sequence[Meeting], ends: Sequence[float], seconds: float) -> Lateness:
    """Find the ranks for which others wait.

    Parameters
    ----------
    ends
        When a rank's steps ended; where none are known, each meeting is a step.
    seconds
        The whole time.
    """
    together = [meeting for meeting in meetings if len(meeting.awaited) > 1]
    steps = _by_step(together, ends)
    noise = LATE * seconds / max(1, len(steps))
    late = [group for step in steps if (group := latecomers(_lags(step), noise))]
    often = Counter(rank for group in late for rank in group)
    mostly = frozenset(rank for rank, count in often.items() if 2 * count > len(late))
    waited = {rank: _waited_for(rank, mostly, together) for rank in mostly}
    found = [
        Late(rank, waited[rank], often[rank], len(steps))
        for rank in sorted(mostly, key=lambda rank: (-waited[rank], rank))
        if waited[rank] >= LATE * seconds
    ]
    if found:
        return Lateness(tuple(found))
    turns = tuple(sorted(often)) if not mostly else ()
    much = sum(_waited_for(r, frozenset({r}), together) for r in turns) >= LATE * seconds
    return Lateness((), turns if much else ())


def latecomers(lags: Mapping[int, float], noise: float) -> frozenset[int]:
    """The ranks that come after the others: after the widest gap, if that is more than noise.

    Parameters
    ----------
    lags
        Seconds by which each rank comes after the first.
    """
    order = sorted(lags, key=lags.__getitem__)
    begins = range(len(order) - len(order) // 2, len(order))
    gaps = {i: lags[order[i]] - lags[order[i - 1]] for i in begins}
    widest = max(gaps, key=gaps.__getitem__, default=0)
    return frozenset(order[widest:] if widest and gaps[widest] > noise else ())


def _by_step(meetings: Sequence[Meeting], ends: Sequence[float]) -> list[list[Meeting]]:
    if not ends:
        return [[meeting] for meeting in meetings]
    steps: defaultdict[int, list[Meeting]] = defaultdict(list)
    for meeting in meetings:
        # What comes after the last end is of a step that goes on, and too short to be one.
        begun = bisect.bisect_right(ends, min(meeting.came.values()))
        steps[min(begun, len(ends) - 1)].append(meeting)
    return list(steps.values())


def _lags(step: Sequence[Meeting]) -> dict[int, float]:
    """By how much each rank came later than the first, in all: what it makes up for is no delay."""
    lags: defaultdict[int, float] = defaultdict(float)
    for meeting in step:
        first = min(meeting.came.values())
        for rank, time in meeting.awaited.items():
            lags[rank] += time - first
    return lags


def _waited_for(rank: int, late: frozenset[int], meetings: Sequence[Meeting]) -> float:
    """Seconds that those who are not late waited for a rank."""
    waited = 0.0
    for meeting in meetings:
        times = meeting.awaited
        others = [time for other, time in times.items() if other not in late]
        if rank in times and others:
            waited += max(0.0, times[rank] - max(others))
    return waited
