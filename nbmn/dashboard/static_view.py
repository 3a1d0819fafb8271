"""What stays in the notebook: a picture of the curves and a table, without script.

The picture is an SVG inside an ``<img>``: a sanitiser that refuses it leaves its
alternative text, not the pieces of its labels. Colours are those of the page's theme; where
a sanitiser has taken the style sheet that tells it, they read on white and on black.
"""

from __future__ import annotations

import base64
import functools
import math
import re
from html import escape
from pathlib import Path

import numpy as np

from nbmn.dashboard import text
from nbmn.dashboard.encoding import MAX_CHARTS, band, headline, limits
from nbmn.dashboard.palette import (
    CROWD_COLOR,
    DARK,
    DIM,
    LAMPS,
    LINE,
    NEUTRAL,
    css_color,
    rank_color,
)
from nbmn.dashboard.snapshot import CROWD, FEW, THROUGHPUT, Chart, RankRow, Snapshot

__all__ = ["html", "plain", "svg", "ticks"]

# Two beside each other are as wide as the output area of a usual window, and as high as the live
# board: there pictures are shown at their own size, and nothing moves when they come.
_WIDE, _HEIGHT = 406, 264
_LEFT, _RIGHT, _TOP, _BOTTOM = 54, 12, 30, 42
_SIZE = 12
_DIGIT = 8
"""Pixels that a digit takes at most."""
_FINE = 4
_FEW_POINTS = 5
"""Curves of so few have each of them marked."""


def plain(snapshot: Snapshot) -> str:
    """One paragraph of text."""
    title = snapshot.title or "training"
    parts = [f"{title}: {snapshot.status}", *headline(snapshot)]
    parts += [
        f"{text.label(name)} {text.number(mean)}"
        for name, mean in zip(snapshot.names, snapshot.means, strict=True)
    ]
    if snapshot.samples:
        parts.append(f"{text.rate(snapshot.average)} samples/s")
    if snapshot.message:
        parts.append(snapshot.message)
    return ", ".join(parts)


def html(snapshot: Snapshot) -> str:
    """Heading, curves and table."""
    title = escape(snapshot.title or "training")
    color = LAMPS.get(snapshot.status, NEUTRAL)
    mark = text.GLYPHS.get(snapshot.status, "")
    parts = [
        f"<div><b>{title}</b> &nbsp;"
        f'<span style="{css_color(color)}">{mark}</span> {escape(snapshot.status)} &nbsp; '
        f'<span style="opacity:.75">{escape(" · ".join(headline(snapshot)))}</span></div>'
    ]
    if snapshot.message:
        style = css_color(LAMPS["failed"])
        parts.append(f'<div style="{style}">{escape(snapshot.message)}</div>')
    # A run of less than half a second has no curve of its throughput; the table has the number.
    drawn = [chart for chart in snapshot.charts[:MAX_CHARTS] if chart.x.size]
    if drawn:
        pictures = " ".join(_picture(chart, snapshot.ranks) for chart in drawn)
        # Not in a picture: no grey is as easy to read on black as on white.
        parts.append(f"<div>{pictures}</div>{_key(snapshot)}")
    # A page that is too narrow has it scroll.
    table = f'<div style="overflow-x:auto">{_table(snapshot)}</div>'
    if len(snapshot.ranks) > CROWD:
        table = f"<details><summary>{_census(snapshot)}</summary>{table}</details>"
    return f'<div class="nbmn-finished">{_style()}{"".join([*parts, table])}</div>'


@functools.cache
def _style() -> str:
    sheet = (Path(__file__).parent / "static" / "finished.css").read_text("utf-8")
    return f"<style>{' '.join(sheet.split())}</style>"


def _picture(chart: Chart, ranks: tuple[int, ...]) -> str:
    """One for each chart, so that they come one below the other on a narrow page."""
    data = base64.b64encode(svg(chart, ranks).encode()).decode()
    return (
        f'<img alt="Curves of {escape(chart.key)} per rank" style="max-width:100%"'
        f' src="data:image/svg+xml;base64,{data}">'
    )


def svg(chart: Chart, ranks: tuple[int, ...]) -> str:
    """A chart as an SVG document with one path per rank."""
    panel = _panel(chart, ranks)
    # A browser takes the theme for that of the element that shows the picture.
    dark = "".join(
        f'[fill="{color}"]{{fill:{like}}}[stroke="{color}"]{{stroke:{like}}}'
        for color, like in DARK.items()
        if color in panel or color == DIM
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDE}" height="{_HEIGHT}" '
        f'viewBox="0 0 {_WIDE} {_HEIGHT}" font-family="system-ui,sans-serif" font-size="{_SIZE}" '
        f'fill="{DIM}" stroke-linejoin="round">'
        f"<style>@media(prefers-color-scheme:dark){{{dark}}}</style>{panel}</svg>"
    )


def _panel(chart: Chart, ranks: tuple[int, ...]) -> str:
    bottom, top = limits(chart)
    start, stop = (float(chart.x[0]), float(chart.x[-1])) if chart.x.size else (0.0, 1.0)
    if chart.key == THROUGHPUT:
        start = 0.0
    if stop <= start:
        start, stop = start - 1, start + 1
    right, floor = _WIDE - _RIGHT, _HEIGHT - _BOTTOM

    def across(x: np.ndarray) -> np.ndarray:
        return _LEFT + (x - start) / (stop - start) * (right - _LEFT)

    def up(y: np.ndarray) -> np.ndarray:
        return floor - (y - bottom) / (top - bottom) * (floor - _TOP)

    name = "samples/s per rank" if chart.key == THROUGHPUT and len(ranks) > 1 else chart.key
    parts = [
        f'<text x="{_LEFT}" y="16" font-size="13" font-weight="600" fill="{LINE}">'
        f"{escape(name)}</text>"
    ]
    for tick in ticks(bottom, top):
        y = float(up(np.float64(tick)))
        parts.append(
            f'<path d="M{_LEFT} {y:.1f}H{right}" stroke="{NEUTRAL}" stroke-opacity=".2"/>'
            f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{_label(tick)}</text>'
        )
    for tick in ticks(start, stop):
        label = _label(tick)
        # One at the edge is moved inwards: the picture ends there.
        x = min(float(across(np.float64(tick))), _WIDE - len(label) * _DIGIT / 2)
        parts.append(f'<text x="{x:.1f}" y="{floor + 16}" text-anchor="middle">{label}</text>')
    parts.append(f'<path d="M{_LEFT} {floor}H{right}" stroke="{NEUTRAL}" stroke-opacity=".5"/>')
    middle = (_LEFT + right) / 2
    parts.append(
        f'<text x="{middle:.0f}" y="{floor + 34}" text-anchor="middle">'
        f"{escape(chart.x_label)}</text>"
    )
    crowd = len(ranks) > CROWD
    if crowd:
        parts.append(_area(across, up, chart))
    parts.append(f'<g transform="scale({1 / _FINE})" fill="none" stroke-linecap="round">')
    lines = []
    for rank, curve in zip(ranks, chart.ranks, strict=True):
        width, color, opacity = 1.5, rank_color(rank), 0.9
        if crowd:
            width, color, opacity = 1, CROWD_COLOR, min(0.2, 5 / len(ranks))
        path = _line(across, up, *(_sample if crowd else _thin)(chart.x, curve))
        style = _stroke(width, color, opacity)
        lines.append(f'<path id="{escape(chart.key)}-{rank}" d="{path}" {style}/>')
        lines.append("" if crowd else _dots(path, color))
    if len(ranks) > 1:
        # The mean of few ranks is as noisy as they are, and would hide them.
        few = len(ranks) <= FEW
        path = _line(across, up, *_thin(chart.x, chart.mean))
        mean = f'<path d="{path}" {_stroke(4 if few else 2.5, LINE, 0.4 if few else 1)}/>'
        lines.insert(0 if few else len(lines), mean + ("" if few else _dots(path, LINE)))
    parts += lines
    for curve in chart.others:
        path = _line(across, up, *_thin(chart.x, curve))
        dashes = f'stroke-dasharray="{6 * _FINE} {4 * _FINE}"'
        parts.append(f'<path d="{path}" {_stroke(2, LINE)} {dashes}/>{_dots(path, LINE)}')
    parts.append("</g>")
    return "".join(parts)


def _dots(path: str, color: str) -> str:
    """The points of a line that has few."""
    if not path or path.count("M") + path.count("l") > _FEW_POINTS:
        return ""
    # Each as a line of no length with a round end.
    dots = path.replace("h0", "").replace("l", "m")
    dots = re.sub(r"([Mm]-?\d+ -?\d+)", r"\1h0", dots)
    return f'<path d="{dots}" {_stroke(5, color)}/>'


def _key(snapshot: Snapshot) -> str:
    """What the curves are that belong to no rank."""
    keys = ["thick: mean of the ranks"] if len(snapshot.ranks) > 1 else []
    dashed = [text.label(n) for chart in snapshot.charts[:MAX_CHARTS] for n in chart.names[1:]]
    if dashed:
        keys.append(f"dashed: {', '.join(dashed)}")
    return f"<div>{escape('; '.join(keys))}</div>" if keys else ""


def _line(across, up, x: np.ndarray, y: np.ndarray) -> str:
    """Path data.

    Whole numbers on a scale of ``_FINE`` to the pixel, each point relative to the one
    before: 64 ranks fit into a notebook without being felt.
    """
    known = np.isfinite(y)
    points = np.zeros((len(x), 2), np.int64)
    points[:, 0] = np.rint(across(x) * _FINE)
    points[known, 1] = np.rint(up(y[known]) * _FINE)
    parts, last = [], None
    for point, here in zip(points.tolist(), known, strict=True):
        if not here:
            last = None
            continue
        if last is None:
            parts.append(f"M{point[0]} {point[1]}h0")  # a point alone shows as a dot
        else:
            right, down = point[0] - last[0], point[1] - last[1]
            parts.append(f"l{right}{down}" if down < 0 else f"l{right} {down}")
        last = point
    return "".join(parts)


def _stroke(width: float, color: str, opacity: float = 1) -> str:
    return f'stroke="{color}" stroke-width="{width * _FINE:g}" stroke-opacity="{opacity:.2g}"'


def _sample(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Some forty points; a crowd's extremes are in its band."""
    chosen = np.unique(np.linspace(0, len(x) - 1, 40).astype(int)) if len(x) else slice(0)
    return x[chosen], y[chosen]


def _thin(x: np.ndarray, y: np.ndarray, budget: int = 200) -> tuple[np.ndarray, np.ndarray]:
    """At most about ``budget`` points; the extremes of each stretch are kept."""
    if len(x) <= budget:
        return x, y
    keep = {0, len(x) - 1}
    for stretch in np.array_split(np.arange(len(x)), max(1, budget // 2)):
        values = y[stretch]
        if np.isfinite(values).any():
            keep |= {int(stretch[np.nanargmin(values)]), int(stretch[np.nanargmax(values)])}
        else:
            keep.add(int(stretch[0]))
    chosen = sorted(keep)
    return x[chosen], y[chosen]


def _area(across, up, chart: Chart) -> str:
    low, high = band(chart.ranks)
    known = np.isfinite(low) & np.isfinite(high)
    if not known.any():
        return ""
    x, low, high = across(chart.x[known]), up(low[known]), up(high[known])
    there = "L".join(f"{a:.1f} {b:.1f}" for a, b in zip(x, high, strict=True))
    back = "L".join(f"{a:.1f} {b:.1f}" for a, b in zip(x[::-1], low[::-1], strict=True))
    return f'<path d="M{there}L{back}Z" fill="{CROWD_COLOR}" fill-opacity=".15"/>'


def ticks(low: float, high: float) -> list[float]:
    """About five round numbers between ``low`` and ``high``."""
    rough = (high - low) / 6
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
    first = math.ceil(low / step)
    return [index * step for index in range(first, math.floor(high / step + 1e-9) + 1)]


def _label(value: float) -> str:
    if abs(value) >= 1e4:
        return f"{value / 1e6:g}M" if abs(value) >= 1e6 else f"{value / 1e3:g}k"
    return f"{value:.4g}"


def _table(snapshot: Snapshot) -> str:
    head = ["rank", "state", "iteration", *(escape(text.label(name)) for name in snapshot.names)]
    if snapshot.samples:
        head.append("samples/s")
    lines = [_cells(snapshot, head, ["GPU"], "th")]
    lines += [_table_row(snapshot, row) for row in snapshot.rows]
    if len(snapshot.rows) > 1:
        cells = ["all", "", "", *map(text.number, snapshot.means)]
        if snapshot.samples:
            cells.append(text.rate(snapshot.rate))
        lines.append(_cells(snapshot, [f"<b>{cell}</b>" for cell in cells], [""]))
    return f"<table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def _table_row(snapshot: Snapshot, row: RankRow) -> str:
    crowd = len(snapshot.ranks) > CROWD
    swatch = "" if crowd else f'<span style="{css_color(rank_color(row.rank))}">●</span> '
    state = row.lamp.state
    mark = f'<span style="{css_color(LAMPS[state])}">{text.GLYPHS[state]}</span>'
    detail = f": {row.lamp.detail}" if row.lamp.detail else ""
    cells = [f"{swatch}{row.rank}", f"{mark} {escape(state + detail)}"]
    cells.append(text.count(row.iteration) if row.iteration else "–")
    cells += map(text.number, row.values)
    if snapshot.samples:
        cells.append(text.rate(row.rate))
    return _cells(snapshot, cells, [escape(row.gpu or "–")])


def _cells(snapshot: Snapshot, cells: list[str], gpu: list[str], tag: str = "td") -> str:
    """Words to the left, numbers to the right, as on the live board."""
    sides = ["left"] * 2 + ["right"] * (len(cells) - 2)
    if snapshot.on_gpus:
        cells, sides = [*cells, *gpu], [*sides, "left"]
    return "".join(
        f'<{tag} style="text-align:{side}">{cell}</{tag}>'
        for cell, side in zip(cells, sides, strict=True)
    )


def _census(snapshot: Snapshot) -> str:
    """``62 ranks done, 1 failed (17), 1 silent (40)``."""
    by_state: dict[str, list[int]] = {}
    for row in snapshot.rows:
        by_state.setdefault(row.lamp.state, []).append(row.rank)
    parts = []
    for state, ranks in sorted(by_state.items(), key=lambda item: -len(item[1])):
        some = f" ({', '.join(map(str, ranks))})" if parts and len(ranks) <= 8 else ""
        parts.append(f"{len(ranks)} {state}{some}")
    return f"{len(snapshot.rows)} ranks: {', '.join(parts)}"
