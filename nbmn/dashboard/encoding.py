"""A snapshot on its way to the page: one JSON text and one block of numbers.

The block holds, chart after chart, ``x`` as float64 of shape (points,) and the
curves as float32 of shape (columns, points), little-endian, each chart padded to
eight bytes. Everything a person reads is put into words here, not in the page.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from nbmn.dashboard import text
from nbmn.dashboard.snapshot import CROWD, THROUGHPUT, Chart, RankRow, Snapshot

__all__ = ["MAX_CHARTS", "columns", "decode_frame", "encode_frame", "encode_state", "limits"]

MAX_CHARTS = 4
"""Charts on a board; further values are in the table only."""

_LARGEST = 3e38


def columns(chart: Chart, ranks: tuple[int, ...]) -> list[str]:
    """Names of a chart's curves, in the order they are sent; ``x`` is not among them."""
    names = [f"r{rank}" for rank in ranks]
    names += ["mean", "low", "high"]
    names += [f"other{index}" for index in range(len(chart.others))]
    return names if chart.total is None else [*names, "total"]


def encode_frame(snapshot: Snapshot) -> bytes:
    """The numbers of all charts."""
    blocks = []
    for chart in snapshot.charts[:MAX_CHARTS]:
        low, high = band(chart.ranks)
        further = [*chart.others, *([] if chart.total is None else [chart.total])]
        curves = np.vstack([chart.ranks, chart.mean, low, high, *further])
        block = chart.x.astype("<f8").tobytes() + curves.astype("<f4").tobytes()
        blocks.append(block + bytes(-len(block) % 8))
    return b"".join(blocks)


def decode_frame(frame: bytes, layout: list[dict[str, Any]]) -> list[dict[str, np.ndarray]]:
    """Read :func:`encode_frame`'s block by the ``charts`` of :func:`encode_state`.

    What the page does in JavaScript; the tests read frames with it.
    """
    charts, offset = [], 0
    for chart in layout:
        points, names = chart["points"], chart["columns"]
        x = np.frombuffer(frame, "<f8", points, offset)
        offset += 8 * points
        curves = np.frombuffer(frame, "<f4", points * len(names), offset)
        offset += 4 * curves.size
        offset += -offset % 8
        charts.append({"x": x, **dict(zip(names, curves.reshape(len(names), points), strict=True))})
    return charts


def headline(snapshot: Snapshot) -> list[str]:
    """How far the run is, in words."""
    progress = snapshot.progress
    return text.headline(
        progress.iteration,
        progress.iterations,
        progress.epoch,
        progress.epochs,
        progress.elapsed,
        progress.eta,
        snapshot.status == "running",
    )


def encode_state(snapshot: Snapshot) -> str:
    """All words and the layout of the block, as JSON."""
    progress = snapshot.progress
    state = {
        "title": snapshot.title or "training",
        "status": snapshot.status,
        "message": snapshot.message,
        "fraction": progress.fraction,
        "headline": headline(snapshot),
        "crowd": len(snapshot.ranks) > CROWD,
        "names": [text.label(name) for name in snapshot.names],
        "means": [text.number(value) for value in snapshot.means],
        "rate": text.rate(snapshot.rate),
        "average": text.rate(snapshot.average),
        "reported": snapshot.samples > 0,
        "gpus": snapshot.on_gpus,
        "rows": [_row(snapshot, row) for row in snapshot.rows],
        "charts": [_layout(snapshot, chart) for chart in snapshot.charts[:MAX_CHARTS]],
    }
    return json.dumps(state, allow_nan=False, separators=(",", ":"))


def band(ranks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Lowest and highest of all ranks at each point; NaN where there is none."""
    known = np.isfinite(ranks)
    low = np.where(known, ranks, np.inf).min(axis=0, initial=np.inf)
    high = np.where(known, ranks, -np.inf).max(axis=0, initial=-np.inf)
    none = ~known.any(axis=0)
    low[none] = high[none] = np.nan
    return low, high


def _row(snapshot: Snapshot, row: RankRow) -> dict[str, Any]:
    return {
        "rank": row.rank,
        "lamp": row.lamp.state,
        "detail": row.lamp.detail,
        "iteration": text.count(row.iteration) if row.iteration else "–",
        "values": [text.number(value) for value in row.values],
        "rate": text.rate(row.rate),
        "gpu": row.gpu,
    }


def _layout(snapshot: Snapshot, chart: Chart) -> dict[str, Any]:
    # What the chart's head says: [line style, name, latest value].
    several = len(snapshot.ranks) > 1
    if chart.key == THROUGHPUT:
        latest = [["", "average", text.rate(snapshot.average)]]
        if snapshot.status == "running":
            latest.insert(0, ["", "all ranks" if several else "now", text.rate(snapshot.rate)])
        if several:
            latest.insert(0, ["mean", "mean", ""])
    else:
        values = dict(zip(snapshot.names, snapshot.means, strict=True))
        latest = [
            [
                "mean" if several else "",
                "mean" if several else "",
                text.number(values[chart.names[0]]),
            ]
        ]
        latest += [
            ["other", _beside(name, chart.key), text.number(values[name])]
            for name in chart.names[1:]
        ]
    return {
        "key": chart.key,
        "points": len(chart.x),
        "columns": columns(chart, snapshot.ranks),
        "x_label": chart.x_label,
        "limits": limits(chart),
        "latest": latest,
    }


def _beside(name: str, key: str) -> str:
    """``validation loss`` is just ``validation`` in the chart of the loss."""
    return text.label(name).removesuffix(key).strip() or text.label(name)


def limits(chart: Chart) -> tuple[float, float]:
    """Lower and upper end of a chart's axis of values; of the throughput zero is the lower."""
    curves = [chart.mean, *chart.others, *chart.ranks]
    finite = np.concatenate([curve[np.isfinite(curve)] for curve in curves])
    if not finite.size:
        return 0.0, 1.0
    # A page holds no larger ones.
    low, high = np.clip([finite.min(), finite.max()], -_LARGEST, _LARGEST).tolist()
    if chart.key == THROUGHPUT:
        return 0.0, 1.1 * high if high > 0 else 1.0
    size = max(abs(low), abs(high))
    # A tenth to both sides of a value that does not change: an accuracy stays one.
    margin = 0.08 * (high - low) if high - low > 1e-6 * size else 0.1 * size or 1.0
    return low - margin, high + margin
