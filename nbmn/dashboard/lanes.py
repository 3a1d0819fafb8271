"""What ranks did, side by side on one clock; who is late, and in what. Pure."""

from __future__ import annotations

import itertools
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from nbmn.dashboard.lateness import Meeting, lateness
from nbmn.records import Span, Timeline

__all__ = ["PHASES", "Bar", "Lanes", "Straggler", "lanes"]

PHASES = ("data", "forward", "backward", "update", "extensions")
"""Phases with colours of their own, in the order of a step; then come others."""
WAITING, COMMUNICATION = "waiting", "communication"
TELLING = 0.25
"""Part of the wait for a rank that a phase must account for to be named as its cause."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A stretch of a rank's lane; bars of a lane do not overlap."""

    rank: int
    kind: str
    """A phase, ``communication``, or ``waiting`` for ranks that have not come yet."""
    begin: float
    """Seconds since the beginning of the picture."""
    end: float
    where: str
    """The user's line, such as ``cell [12] line 3``."""
    detail: str = ""
    """Of communication, which."""
    lasting: bool = False
    """It has not ended."""


@dataclass(frozen=True, slots=True)
class Straggler:
    """A rank for which the others wait."""

    rank: int
    share: float
    """Of the whole time, 0 to 1."""
    late: int
    """Steps in which it is late; collectives, where no steps are marked."""
    of: int
    """How many there are."""
    kind: str = ""
    """The phase in which it takes longer than the others; empty if there is none."""
    where: str = ""
    mine: float = 0.0
    """Seconds of that phase, for each step; in all, where no steps are marked."""
    theirs: float = 0.0
    """The median of the others."""


@dataclass(frozen=True, slots=True)
class Lanes:
    """The last steps of some ranks."""

    ranks: tuple[int, ...]
    seconds: float
    """From the first begin to the last end."""
    steps: int
    """That each rank has made, the most of any; 0 where none is marked."""
    bars: tuple[Bar, ...]
    shares: Mapping[int, Mapping[str, float]]
    """Seconds by rank and kind."""
    stragglers: tuple[Straggler, ...]
    turns: tuple[int, ...] = ()
    """Ranks for which the others wait by turns."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """What there is, in the order of a step."""
        there = {bar.kind for bar in self.bars}
        known = [*PHASES[:3], COMMUNICATION, WAITING, *PHASES[3:]]
        return tuple([k for k in known if k in there] + sorted(there - set(known)))


def lanes(timelines: Sequence[Timeline], one_host: bool = True) -> Lanes:
    """Put what ranks told side by side.

    Parameters
    ----------
    one_host
        All ranks have the same clock; otherwise their wall clocks are what they have in common.
    """
    ranks = tuple(sorted(timeline.rank for timeline in timelines))
    shifted = _of_one_time([_on_one_clock(timeline, one_host) for timeline in timelines])
    spans = {timeline.rank: timeline.spans for timeline in shifted if timeline.spans}
    if not spans:
        return Lanes(ranks, 0.0, 0, (), {rank: {} for rank in ranks}, ())
    begin = min(span.begin for each in spans.values() for span in each)
    end = max(span.end or span.begin for each in spans.values() for span in each)
    clocks = {timeline.rank: timeline.clock for timeline in shifted}
    meetings = _meetings(spans, _members(shifted), clocks, end)
    bars = []
    for rank, each in sorted(spans.items()):
        pieces = [piece for span in each for piece in _split(span, meetings, end)]
        flat = _flat([replace(piece, rank=rank) for piece in pieces])
        bars += [replace(bar, begin=bar.begin - begin, end=bar.end - begin) for bar in flat]
    shares = {rank: dict[str, float]() for rank in ranks}
    for bar in bars:
        shares[bar.rank][bar.kind] = shares[bar.rank].get(bar.kind, 0.0) + bar.end - bar.begin
    # Of one rank, since others may be a step further.
    ends = max((timeline.ends for timeline in shifted if timeline.spans), key=len)
    found = lateness(tuple(meetings.values()), ends, end - begin)
    late = tuple(
        Straggler(
            *(each.rank, each.seconds / (end - begin), each.steps, each.of),
            *_cause(each.rank, each.seconds, bars, shares, max(1, len(ends))),
        )
        for each in found.stragglers
    )
    return Lanes(ranks, end - begin, len(ends), tuple(bars), shares, late, found.turns)


def _of_one_time(timelines: Sequence[Timeline]) -> list[Timeline]:
    """Without what ranks did before the last run of any began: it is of an earlier cell."""
    began: dict[str, float] = {}
    for each in timelines:
        if each.spans:
            first = each.spans[0].begin
            began[each.run] = min(first, began.get(each.run, first))
    last = max(began, key=began.__getitem__, default="")
    return [
        each
        if each.run == last
        else replace(
            each,
            spans=tuple(s for s in each.spans if s.end is None or s.end > began[last]),
            ends=(),
        )
        for each in timelines
    ]


def _on_one_clock(timeline: Timeline, one_host: bool) -> Timeline:
    """The timeline with lasting spans up to now, and times that all ranks share."""
    shift = 0.0 if one_host else timeline.time - timeline.clock
    spans = tuple(
        replace(span, begin=span.begin + shift, end=None if span.end is None else span.end + shift)
        for span in timeline.spans
    )
    if any(span.end is None for span in spans):
        now = Span("", timeline.clock + shift, timeline.clock + shift, "")
        spans = (*spans, now)
    return replace(timeline, spans=spans, ends=tuple(end + shift for end in timeline.ends))


_Meetings = Mapping[tuple[str, int], Meeting]
"""By communicator and number."""


def _members(timelines: Sequence[Timeline]) -> Mapping[str, set[int]]:
    """Ranks of each communicator, of those that are shown."""
    shown = {timeline.rank for timeline in timelines}
    found: defaultdict[str, set[int]] = defaultdict(set)
    for timeline in timelines:
        for group in timeline.groups:
            found[group.link] |= shown.intersection(group.members)
        for span in timeline.spans:
            found[span.link].add(timeline.rank)  # it may be gone, and told of by nobody
    return found


def _meetings(
    spans: Mapping[int, Sequence[Span]],
    members: Mapping[str, set[int]],
    clocks: Mapping[int, float],
    now: float,
) -> _Meetings:
    """Collectives by communicator and number; ``clocks`` are when each rank was asked."""
    came: defaultdict[tuple[str, int], dict[int, float]] = defaultdict(dict)
    until: defaultdict[tuple[str, int], float] = defaultdict(float)
    reached: Counter[tuple[str, int]] = Counter()
    for rank, each in spans.items():
        for span in each:
            if span.link and span.number:
                key = span.link, span.number
                came[key][rank] = span.begin
                until[key] = max(until[key], now if span.end is None else span.end)
                reached[span.link, rank] = max(reached[span.link, rank], span.number)
    found = {}
    for (link, number), times in came.items():
        last = max(times.values())
        absent = tuple(
            rank
            for rank in sorted(members[link])
            # Of one that has gone further the recording begins later; one that was asked
            # before the others came may have come after them.
            if reached[link, rank] < number and clocks[rank] > last
        )
        end = min([until[link, number], *(clocks[rank] for rank in absent)])
        found[link, number] = Meeting(times, absent, end)
    return found


def _split(span: Span, meetings: _Meetings, now: float) -> list[Bar]:
    """A span as bars: of a collective, what it waits for others, and the rest."""
    end = now if span.end is None else span.end
    lasting = span.end is None
    if not span.name:
        return []
    if not span.link:
        return [Bar(0, span.name, span.begin, end, span.where, "", lasting)]
    size = f", {_size(span.nbytes)}" if span.nbytes else ""
    detail = f"{span.name}{f' #{span.nth}' if span.nth else ''}{size}"
    meeting = meetings.get((span.link, span.number))
    if lasting or (meeting and meeting.absent):
        return [Bar(0, WAITING, span.begin, end, span.where, detail, lasting)]
    last = min(max(meeting.came.values()), end) if meeting else span.begin
    pieces = [(WAITING, span.begin, last), (COMMUNICATION, max(last, span.begin), end)]
    return [Bar(0, kind, a, b, span.where, detail) for kind, a, b in pieces if b > a]


def _flat(bars: Iterable[Bar]) -> list[Bar]:
    """Bars of one lane without overlap: what began later lies on top."""
    ordered = sorted(bars, key=lambda bar: (bar.begin, -bar.end))
    edges = sorted({edge for bar in ordered for edge in (bar.begin, bar.end)})
    found: list[Bar] = []
    stack: list[Bar] = []
    coming = iter(ordered)
    ahead = next(coming, None)
    for begin, end in itertools.pairwise(edges):
        while ahead is not None and ahead.begin <= begin:
            stack.append(ahead)
            ahead = next(coming, None)
        stack = [bar for bar in stack if bar.end > begin]
        if not stack:
            continue
        top = stack[-1]
        last = found[-1] if found else None
        if last is not None and last.end == begin and _alike(last, top):
            found[-1] = replace(last, end=end)
        else:
            found.append(replace(top, begin=begin, end=end))
    return found


def _alike(one: Bar, other: Bar) -> bool:
    return (one.kind, one.where, one.detail) == (other.kind, other.where, other.detail)


def _cause(
    rank: int,
    delay: float,
    bars: Sequence[Bar],
    shares: Mapping[int, Mapping[str, float]],
    steps: int,
) -> tuple[str, str, float, float]:
    """The phase in which a rank takes so much longer than the others that it explains the delay."""
    others = [share for other, share in shares.items() if other != rank and share]
    excess = {
        kind: seconds - statistics.median(share.get(kind, 0.0) for share in others)
        for kind, seconds in shares[rank].items()
        if kind not in (WAITING, COMMUNICATION) and others
    }
    if not excess or max(excess.values()) < TELLING * delay:
        return "", "", 0.0, 0.0
    kind = max(excess, key=excess.__getitem__)
    lines = Counter[str]()
    for bar in bars:
        if bar.rank == rank and bar.kind == kind:
            lines[bar.where] += bar.end - bar.begin  # type: ignore[assignment]
    mine = shares[rank][kind]
    return kind, lines.most_common(1)[0][0], mine / steps, (mine - excess[kind]) / steps


def _size(nbytes: int) -> str:
    size = float(nbytes)
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} GB"
