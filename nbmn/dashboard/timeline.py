"""The picture of what ranks did: a lane for each rank, a colour for each phase."""

from __future__ import annotations

import base64
from html import escape
from typing import TYPE_CHECKING, Any

from nbmn.dashboard import text
from nbmn.dashboard.lanes import COMMUNICATION, WAITING, Bar, Lanes, Straggler
from nbmn.dashboard.palette import LAMPS, NEUTRAL
from nbmn.dashboard.static_view import ticks

if TYPE_CHECKING:
    from bokeh.plotting import figure as Figure

__all__ = ["encode_timeline", "html", "kind_color", "plain", "svg"]

_COLORS = {
    "data": "#56B4E9",
    "forward": "#0072B2",
    "backward": "#009E73",
    COMMUNICATION: "#E69F00",
    WAITING: "#8A8A8A",
    "update": "#CC79A7",
    "extensions": "#D6C72A",
}
_OTHERS = ("#9467BD", "#8C564B", "#17BECF", "#BCBD22")
_LATE = LAMPS["failed"]
_TEXT = "#767676"
_LEFT, _RIGHT, _TOP, _BOTTOM, _WIDTH = 70, 12, 8, 40, 836
_FEW = 24
"""Ranks up to which each has a lane of full height."""


def kind_color(kind: str, kinds: tuple[str, ...]) -> str:
    """The colour of a phase."""
    if kind in _COLORS:
        return _COLORS[kind]
    others = [each for each in kinds if each not in _COLORS]
    return _OTHERS[others.index(kind) % len(_OTHERS)]


def lane_height(lanes: Lanes) -> int:
    """Pixels of a lane, with the gap to the next."""
    return 26 if len(lanes.ranks) <= _FEW else 10


NO_STEPS = (
    "no steps marked: showing the last cell (nbmn.report() ends a step, or a phase named update)"
)


def says(straggler: Straggler, lanes: Lanes) -> str:
    """A straggler in a sentence."""
    who = "the other waits" if len(lanes.ranks) == 2 else "the others wait"
    words = f"rank {straggler.rank} is late: {who} for it {100 * straggler.share:.0f}% of the time"
    if straggler.late < straggler.of:
        what = "steps" if lanes.steps else "collectives"
        words += f", in {straggler.late} of {straggler.of} {what}"
    if straggler.kind:
        where = f" ({straggler.where})" if straggler.where else ""
        words += (
            f"; its {straggler.kind}{where} takes {_time(straggler.mine)}"
            f"{' a step' if lanes.steps else ''}, elsewhere {_time(straggler.theirs)}"
        )
    return words


def headline(lanes: Lanes) -> str:
    """What the picture shows, in words."""
    who = text.ranks_in_words(lanes.ranks)
    if not lanes.bars:
        return f"{who}: nothing is recorded yet; train, or mark phases by nbmn.phase"
    steps = f"{lanes.steps} step{'s' * (lanes.steps != 1)}, " if lanes.steps else ""
    return f"{who}: {steps}{_time(lanes.seconds)}"


def _notes(lanes: Lanes) -> list[str]:
    notes = [NO_STEPS] if lanes.bars and not lanes.steps else []
    if lanes.turns:
        who = text.ranks_in_words(lanes.turns)
        notes.append(f"{who} are late by turns: no rank is in most steps")
    return notes


def plain(lanes: Lanes) -> str:
    """Headline, stragglers, and a table of shares."""
    lines = [headline(lanes), *_notes(lanes), *(says(each, lanes) for each in lanes.stragglers)]
    if lanes.bars:
        rows = [["rank", *lanes.kinds], *_rows(lanes)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines += [
            "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
            for row in rows
        ]
    return "\n".join(lines)


def html(lanes: Lanes, anchor: str = "") -> str:
    """Headline, picture and table, without script.

    Parameters
    ----------
    anchor
        Marks the place where a page with a kernel puts the live figure.
    """
    parts = [f"<div><b>{escape(headline(lanes))}</b></div>"]
    parts += [f'<div style="color:{_TEXT}">{escape(each)}</div>' for each in _notes(lanes)]
    parts += [
        f'<div style="color:{_LATE}">{escape(says(each, lanes))}</div>' for each in lanes.stragglers
    ]
    if lanes.bars:
        keys = "".join(
            f'<span style="white-space:nowrap;margin-right:14px">'
            f'<span style="color:{kind_color(kind, lanes.kinds)}">■</span> {escape(kind)}</span>'
            for kind in lanes.kinds
        )
        data = base64.b64encode(svg(lanes).encode()).decode()
        words = escape(f"What {text.ranks_in_words(lanes.ranks)} did, over time")
        parts += [
            f'<div style="margin:4px 0">{keys}</div>',
            f'<div class="nbmn-timeline" data-nbmn-timeline="{escape(anchor)}">'
            f'<img alt="{words}" style="max-width:100%" src="data:image/svg+xml;base64,{data}">'
            "</div>",
            _table(lanes),
        ]
    return "".join(parts)


def svg(lanes: Lanes) -> str:
    """The lanes as an SVG document."""
    pitch = lane_height(lanes)
    floor = _TOP + pitch * len(lanes.ranks)
    right = _WIDTH - _RIGHT
    scale = (right - _LEFT) / (lanes.seconds or 1.0)
    unit, factor = _unit(lanes.seconds)
    parts = []
    for row, rank in enumerate(lanes.ranks):
        if pitch < 20 and row % 4:
            continue
        late = any(each.rank == rank for each in lanes.stragglers)
        style = f' fill="{_LATE}" font-weight="600"' if late else ""
        y = _TOP + pitch * (row + 0.5) + 4
        parts.append(
            f'<text x="{_LEFT - 8}" y="{y:.0f}" text-anchor="end"{style}>rank {rank}</text>'
        )
    for tick in _ticks(lanes.seconds * factor):
        x = _LEFT + tick / factor * scale
        parts.append(
            f'<path d="M{x:.1f} {_TOP}V{floor}" stroke="{NEUTRAL}" stroke-opacity=".25"/>'
            f'<text x="{x:.1f}" y="{floor + 16}" text-anchor="middle">{tick:g}</text>'
        )
    for bar in lanes.bars:
        row = lanes.ranks.index(bar.rank)
        x, width = _LEFT + bar.begin * scale, max(0.4, (bar.end - bar.begin) * scale)
        opacity = ' fill-opacity=".45"' if bar.kind == WAITING else ""
        parts.append(
            f'<path d="M{x:.1f} {_TOP + pitch * row + 2}h{width:.1f}v{pitch - 4}h-{width:.1f}z" '
            f'fill="{kind_color(bar.kind, lanes.kinds)}"{opacity}/>'
        )
    middle = (_LEFT + right) / 2
    parts.append(f'<text x="{middle:.0f}" y="{floor + 34}" text-anchor="middle">{unit}</text>')
    height = floor + _BOTTOM
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" '
        f'viewBox="0 0 {_WIDTH} {height}" font-family="system-ui,sans-serif" font-size="12" '
        f'fill="{_TEXT}">{"".join(parts)}</svg>'
    )


def encode_timeline(lanes: Lanes) -> Any:
    """The figure as what Bokeh embeds in a page."""
    from bokeh.embed import json_item

    from nbmn.dashboard.figures import THEME

    return json_item(make_timeline(lanes), theme=THEME)


def make_timeline(lanes: Lanes) -> Figure:
    """A Bokeh figure with a data source named ``bars``, one row per bar."""
    from bokeh.models import BoxAnnotation, ColumnDataSource, CustomJS, HoverTool, Range1d
    from bokeh.plotting import figure

    from nbmn.dashboard.figures import TOOLTIP

    unit, factor = _unit(lanes.seconds)
    names = [_lane(lanes, rank) for rank in lanes.ranks]
    late = {each.rank for each in lanes.stragglers}
    plot = figure(
        height=lane_height(lanes) * len(names) + 56,
        min_width=300,
        sizing_mode="stretch_width",
        tools="xbox_zoom",
        toolbar_location=None,
        x_range=Range1d(0, lanes.seconds * factor, bounds=(0, lanes.seconds * factor)),
        y_range=names[::-1],
        x_axis_label=f"{unit}; drag over a stretch to see more of it, double-click for all",
        name="timeline",
    )
    for row, rank in enumerate(reversed(lanes.ranks)):
        if rank in late:
            plot.add_layout(
                BoxAnnotation(
                    bottom=row, top=row + 1, fill_color=_LATE, fill_alpha=0.18, level="underlay"
                )
            )
    source = ColumnDataSource(_columns(lanes, factor), name="bars")
    bars = plot.hbar(
        y="lane",
        left="left",
        right="right",
        height=0.82,
        color="color",
        alpha="alpha",
        line_alpha=0,
        source=source,
    )
    row = '<b>@kind</b><span style="grid-column:2/4">@time</span>'
    lines = (
        '<span style="grid-column:1/4">@where</span><span style="grid-column:1/4">@detail</span>'
    )
    plot.add_tools(
        HoverTool(
            renderers=[bars],
            tooltips=TOOLTIP.format(head="@lane", rows=row + lines),
            point_policy="follow_mouse",
            show_arrow=False,
        )
    )
    plot.js_on_event("doubletap", CustomJS(args={"all": plot.x_range}, code="all.reset()"))
    plot.ygrid.visible = False
    plot.yaxis.axis_line_color = None
    return plot


def _lane(lanes: Lanes, rank: int) -> str:
    late = any(each.rank == rank for each in lanes.stragglers)
    return f"late: rank {rank}" if late else f"rank {rank}"


def _columns(lanes: Lanes, factor: float) -> dict[str, list[Any]]:
    def words(bar: Bar) -> str:
        so_far = " so far" if bar.lasting else ""
        return f"{_time(bar.end - bar.begin)}{so_far}"

    bars = lanes.bars
    return {
        "lane": [_lane(lanes, bar.rank) for bar in bars],
        "left": [bar.begin * factor for bar in bars],
        "right": [bar.end * factor for bar in bars],
        "kind": [bar.kind for bar in bars],
        "color": [kind_color(bar.kind, lanes.kinds) for bar in bars],
        "alpha": [0.45 if bar.kind == WAITING else 1.0 for bar in bars],
        "time": [words(bar) for bar in bars],
        "where": [bar.where for bar in bars],
        "detail": [bar.detail for bar in bars],
    }


def _rows(lanes: Lanes) -> list[list[str]]:
    """Shares of the time, by rank and kind."""
    return [
        [
            str(rank),
            *(_percent(lanes.shares[rank].get(kind), lanes.seconds) for kind in lanes.kinds),
        ]
        for rank in lanes.ranks
    ]


def _table(lanes: Lanes) -> str:
    late = {each.rank for each in lanes.stragglers}
    head = "".join(
        f'<th style="text-align:{"right" if i else "left"}">{escape(name)}</th>'
        for i, name in enumerate(("rank", *lanes.kinds))
    )
    body = ""
    for rank, row in zip(lanes.ranks, _rows(lanes), strict=True):
        style = f' style="color:{_LATE};font-weight:600"' if rank in late else ""
        cells = "".join(
            f'<td style="text-align:{"right" if i else "left"}">{cell}</td>'
            for i, cell in enumerate(row)
        )
        body += f"<tr{style}>{cells}</tr>"
    return f"<table><tr>{head}</tr>{body}</table>"


def _percent(seconds: float | None, whole: float) -> str:
    return f"{100 * seconds / whole:.1f}%" if seconds and whole else "–"


def _unit(seconds: float) -> tuple[str, float]:
    if seconds < 1e-3:
        return "microseconds", 1e6
    return ("milliseconds", 1e3) if seconds < 10 else ("seconds", 1.0)


def _time(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{1e6 * seconds:.0f} µs"
    return f"{1e3 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def _ticks(whole: float) -> list[float]:
    return ticks(0.0, whole) if whole > 0 else [0.0]
