"""Where ranks are, as a person reads it: equal stacks once. Pure."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass

from nbmn.debug.diagnosis import describe_wait, whereabouts
from nbmn.debug.states import RankState
from nbmn.markup import template
from nbmn.ranks import name_ranks
from nbmn.records import Frame

UNASKED = "; no stack: the signal that asks for it would cut short the system call it is in"
"""Of a silent rank that the system has asleep, see :func:`nbmn.debug.probe.takes_signals`."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where one rank is."""

    state: RankState
    frames: tuple[Frame, ...] = ()
    """From the cell on, the outermost first; empty where nothing is known, and between cells."""
    pid: int | None = None
    """Of a rank on this host."""


@dataclass(frozen=True, slots=True)
class Folded:
    """Ranks that are at the same place."""

    ranks: tuple[int, ...]
    doing: str
    frames: tuple[Frame, ...]

    @property
    def title(self) -> str:
        return f"{name_ranks(self.ranks)}: {self.doing}"


def fold(places: Sequence[Place]) -> list[Folded]:
    """Put ranks together that do the same at the same place, in rank order."""
    groups: dict[tuple[str, str, tuple[Frame, ...]], list[Place]] = {}
    for place in sorted(places, key=lambda p: p.state.rank):
        state = place.state
        what = describe_wait(state) if state.state == "waiting" else ""
        if state.state == "silent":
            what = f"{state.process} {state.where}"
        groups.setdefault((state.state, what, place.frames), []).append(place)
    return [
        Folded(
            tuple(place.state.rank for place in group),
            _doing(max(group, key=lambda p: p.state.seconds)),
            frames,
        )
        for (_, _, frames), group in groups.items()
    ]


def _doing(place: Place) -> str:
    state = place.state
    if state.state == "waiting":
        return f"in {describe_wait(state)} for {state.seconds:.1f} s"
    if state.state == "running":
        return f"in the cell for {state.seconds:.1f} s" + (
            f", {state.blocked}" if state.blocked else ""
        )
    if state.ended:
        return "idle"
    unasked = state.process == "S" and not place.frames
    return whereabouts(state, place.pid) + (UNASKED if unasked else "")


def render_text(groups: Sequence[Folded]) -> str:
    """For a terminal."""
    lines = []
    for group in groups:
        lines.append(group.title)
        lines += [f"  {frame.place} in {frame.function}{_source(frame)}" for frame in group.frames]
    return "\n".join(lines)


def _source(frame: Frame) -> str:
    return f": {frame.source}" if frame.source else ""


def render_html(groups: Sequence[Folded]) -> str:
    """For a notebook page."""
    body = "".join(
        template("nbmn.debug", "stack.html").substitute(
            title=html.escape(group.title),
            frames="".join(
                template("nbmn.debug", "frame.html").substitute(
                    place=html.escape(frame.place),
                    function=html.escape(frame.function),
                    source=html.escape(frame.source),
                )
                for frame in group.frames
            ),
        )
        for group in groups
    )
    return template("nbmn.debug", "stacks.html").substitute(body=body)
