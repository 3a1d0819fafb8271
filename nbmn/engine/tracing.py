"""What this rank did in its last steps, for the notebook. Local; any thread may ask."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nbmn.engine.lines import describe
from nbmn.phases import STEP, Phase, Run, phases
from nbmn.records import Group, Span, Timeline

if TYPE_CHECKING:
    from nbmn.communicators.recordings import Entry
    from nbmn.communicators.world import World

MOST = 2000
"""Spans that travel; the newest."""


class Tracer:
    """Gathers phases, and collectives and messages.

    Parameters
    ----------
    world
        Its communicators.
    """

    def __init__(self, world: World) -> None:
        self._world = world

    def timeline(self, steps: int) -> Timeline:
        """The last ``steps`` steps of the last run in which this rank did something."""
        ring, world = phases(), self._world
        marked, entries = ring.all(), world.recorder.entries()
        run = last_run(ring.runs(), marked, entries)
        since, ends = beginning(run, marked, ring.reports(), entries, steps)
        found = spans(marked, entries, since, run.end)
        there = {span.link for span in found}
        groups = [Group(str(each.code), each.members) for each in world.links()]
        return Timeline(
            world.rank,
            run.name,
            time.time(),
            time.monotonic(),
            found,
            ends,
            tuple(group for group in groups if group.link in there),
        )


@dataclass(frozen=True, slots=True)
class Stretch:
    """A run, and until when what began belongs to it."""

    name: str = ""
    begin: float = 0.0
    end: float = float("inf")

    def holds(self, moment: float) -> bool:
        """Whether what began or ended then is of this run."""
        return self.begin <= moment < self.end


def last_run(runs: Sequence[Run], marked: Sequence[Phase], entries: Sequence[Entry]) -> Stretch:
    """The last of the user's runs in which anything is recorded; all there is, without runs."""
    begins = [each.begin for each in (*marked, *entries)]
    end = float("inf")
    for run in reversed(runs):
        stretch = Stretch(run.name, run.begin, end)
        if run.traced and any(map(stretch.holds, begins)):
            return stretch
        end = run.begin
    return Stretch(end=0.0) if runs else Stretch()


def beginning(
    run: Stretch,
    marked: Sequence[Phase],
    reports: Sequence[float],
    entries: Sequence[Entry],
    steps: int,
) -> tuple[float, tuple[float, ...]]:
    """When the last steps of a run begin, and when each ends; none where none is marked.

    A step ends with an update, or where no update is marked when it is reported.
    """
    updates = [each.end for each in marked if each.name == STEP and each.end is not None]
    ends = list(filter(run.holds, updates)) or list(filter(run.holds, reports))
    since = ends[-steps - 1] if len(ends) > steps else run.begin
    if entries and entries[0].sequence > 1:
        since = max(since, entries[0].begin)  # what went before is not known as a whole
    return since, tuple(end for end in ends if end > since)[-steps:]


def spans(
    marked: Sequence[Phase], entries: Sequence[Entry], since: float, until: float
) -> tuple[Span, ...]:
    """Put phases and communication of a time together, by begin."""
    found = [
        Span(each.name, max(each.begin, since), each.end, describe(each.file, each.line))
        for each in marked
        if (each.end is None or each.end > since) and each.begin < until
    ]
    found += [
        Span(
            entry.operation,
            entry.begin,
            entry.end,
            describe(entry.file, entry.line),
            str(entry.link),
            entry.number,
            entry.nbytes,
            entry.nth,
        )
        for entry in entries
        if (entry.end is None or entry.end > since) and entry.begin < until
    ]
    return tuple(sorted(found, key=lambda span: span.begin)[-MOST:])
