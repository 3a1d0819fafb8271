"""What stays in the notebook: a picture of the curves and a table, without script.

The picture is an SVG inside an ``<img>``: a sanitiser that refuses it leaves its
alternative text, not the pieces of its labels. Its greys read on white and on black.
"""

from __future__ import annotations

import base64
import math
from html import escape

import numpy as np

from nbmn.dashboard import text
from nbmn.dashboard.encoding import MAX_CHARTS, band, headline
from nbmn.dashboard.palette import CROWD_COLOR, LAMPS, NEUTRAL, rank_color
from nbmn.dashboard.snapshot import CROWD, FEW, THROUGHPUT, Chart, RankRow, Snapshot

__all__ = ["html", "plain", "svg", "ticks"]

# In all as wide as the output area of a usual window, and as high as the live board: there
# the picture is shown at its own size, its labels readable, and nothing moves when it comes.
_WHOLE, _HEIGHT, _GAP = 836, 264, 16
_LEFT, _RIGHT, _TOP, _BOTTOM = 54, 12, 30, 42
_SIZE = 12
_FINE = 4
_TEXT = "#767676"


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
        f'<span style="color:{color}">{mark}</span> {escape(snapshot.status)} &nbsp; '
        f'<span style="opacity:.75">{escape(" · ".join(headline(snapshot)))}</span></div>'
    ]
    if snapshot.message:
        parts.append(f'<div style="color:{LAMPS["failed"]}">{escape(snapshot.message)}</div>')
    drawn = snapshot.charts[:MAX_CHARTS]
    if drawn:
        data = base64.b64encode(svg(snapshot).encode()).decode()
        names = ", ".join(chart.key for chart in drawn)
        parts.append(
            f'<img alt="Curves of {escape(names)} per rank" style="max-width:100%"'
            f' src="data:image/svg+xml;base64,{data}">'
        )
        # Not in the picture: no grey is as easy to read on black as on white.
        parts.append(_key(snapshot))
    table = _table(snapshot)
    if len(snapshot.ranks) > CROWD:
        table = f"<details><summary>{_census(snapshot)}</summary>{table}</details>"
    return "".join([*parts, table])


def svg(snapshot: Snapshot) -> str:
    """The charts, two in a row, as an SVG document with one path per rank and chart."""
    charts = snapshot.charts[:MAX_CHARTS]
    across = min(len(charts), 2)
    wide = (_WHOLE - (across - 1) * _GAP) // max(1, across)
    height = math.ceil(len(charts) / max(1, across)) * _HEIGHT
    panels = [
        f'<g transform="translate({index % across * (wide + _GAP)},{index // across * _HEIGHT})">'
        f"{_panel(chart, snapshot.ranks, wide)}</g>"
        for index, chart in enumerate(charts)
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WHOLE}" height="{height}" '
        f'viewBox="0 0 {_WHOLE} {height}" font-family="system-ui,sans-serif" font-size="{_SIZE}" '
        f'fill="{_TEXT}" stroke-linejoin="round">{"".join(panels)}</svg>'
    )


def _panel(chart: Chart, ranks: tuple[int, ...], wide: int) -> str:
    curves = [chart.mean, *chart.others, *chart.ranks]
    finite = np.concatenate([curve[np.isfinite(curve)] for curve in curves])
    bottom = 0.0 if chart.key == THROUGHPUT else float(finite.min(initial=math.inf))
    top = float(finite.max(initial=-math.inf))
    if not finite.size or not chart.x.size:
        bottom, top = 0.0, 1.0
    if top <= bottom:
        bottom, top = bottom - 0.5, bottom + 0.5
    start, stop = (float(chart.x[0]), float(chart.x[-1])) if chart.x.size else (0.0, 1.0)
    if stop <= start:
        start, stop = start - 1, start + 1
    top += 0.05 * (top - bottom)
    right, floor = wide - _RIGHT, _HEIGHT - _BOTTOM

    def across(x: np.ndarray) -> np.ndarray:
        return _LEFT + (x - start) / (stop - start) * (right - _LEFT)

    def up(y: np.ndarray) -> np.ndarray:
        return floor - (y - bottom) / (top - bottom) * (floor - _TOP)

    name = "samples/s per rank" if chart.key == THROUGHPUT and len(ranks) > 1 else chart.key
    parts = [f'<text x="{_LEFT}" y="16" font-size="13" font-weight="600">{escape(name)}</text>']
    for tick in ticks(bottom, top):
        y = float(up(np.float64(tick)))
        parts.append(
            f'<path d="M{_LEFT} {y:.1f}H{right}" stroke="{NEUTRAL}" stroke-opacity=".2"/>'
            f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{_label(tick)}</text>'
        )
    for tick in ticks(start, stop):
        x = float(across(np.float64(tick)))
        parts.append(
            f'<text x="{x:.1f}" y="{floor + 16}" text-anchor="middle">{_label(tick)}</text>'
        )
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
        if crowd:
            style = _stroke(1, CROWD_COLOR, min(0.2, 5 / len(ranks)))
        else:
            style = _stroke(1.5, rank_color(rank), 0.85)
        path = _line(across, up, *(_sample if crowd else _thin)(chart.x, curve))
        lines.append(f'<path id="{escape(chart.key)}-{rank}" d="{path}" {style}/>')
    if len(ranks) > 1:
        # The mean of few ranks is as noisy as they are, and would hide them.
        few = len(ranks) <= FEW
        path = _line(across, up, *_thin(chart.x, chart.mean))
        mean = f'<path d="{path}" {_stroke(4 if few else 2.5, NEUTRAL, 0.5 if few else 1)}/>'
        lines.insert(0 if few else len(lines), mean)
    parts += lines
    for curve in chart.others:
        path = _line(across, up, *_thin(chart.x, curve))
        style = _stroke(2, NEUTRAL)
        parts.append(f'<path d="{path}" {style} stroke-dasharray="{6 * _FINE} {4 * _FINE}"/>')
    parts.append("</g>")
    return "".join(parts)


def _key(snapshot: Snapshot) -> str:
    """What the curves are that belong to no rank."""
    keys = ["grey: mean of the ranks"] if len(snapshot.ranks) > 1 else []
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
    if snapshot.on_gpus:
        head.append("GPU")
    lines = ["".join(f'<th style="text-align:left">{cell}</th>' for cell in head)]
    lines += [_table_row(snapshot, row) for row in snapshot.rows]
    if len(snapshot.rows) > 1:
        cells = ["all", "", ""]
        cells += map(text.number, snapshot.means)
        if snapshot.samples:
            cells.append(text.rate(snapshot.rate))
        cells += [""] * snapshot.on_gpus
        lines.append("".join(f'<td style="text-align:left"><b>{cell}</b></td>' for cell in cells))
    return f"<table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def _table_row(snapshot: Snapshot, row: RankRow) -> str:
    crowd = len(snapshot.ranks) > CROWD
    swatch = "" if crowd else f'<span style="color:{rank_color(row.rank)}">●</span> '
    mark = f'<span style="color:{LAMPS[row.lamp.state]}">{text.GLYPHS[row.lamp.state]}</span>'
    detail = f": {row.lamp.detail}" if row.lamp.detail else ""
    cells = [f"{swatch}{row.rank}", f"{mark} {escape(row.lamp.state + detail)}"]
    cells.append(text.count(row.iteration) if row.iteration else "–")
    cells += map(text.number, row.values)
    if snapshot.samples:
        cells.append(text.rate(row.rate))
    if snapshot.on_gpus:
        cells.append(escape(row.gpu or "–"))
    return "".join(f'<td style="text-align:left">{cell}</td>' for cell in cells)


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
