"""The Bokeh figures of a board, built all but empty; the page fills them."""

from __future__ import annotations

import json
from html import escape
from typing import Any

from bokeh.embed import json_item
from bokeh.models import (
    ColumnDataSource,
    DataRange1d,
    HoverTool,
    NumeralTickFormatter,
    Range1d,
)
from bokeh.plotting import figure
from bokeh.themes import Theme

from nbmn.dashboard import text
from nbmn.dashboard.encoding import columns
from nbmn.dashboard.palette import NEUTRAL, rank_color
from nbmn.dashboard.snapshot import CROWD, FEW, THROUGHPUT, Chart

__all__ = ["THEME", "TOOLTIP", "encode_figure", "make_figure"]

_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"
# Bokeh's own tooltip is white in every theme: this lies over it, in the page's colours.
TOOLTIP = (
    '<div style="margin:-5px;padding:6px 10px;border-radius:3px;font:11px/1.5 system-ui,sans-serif;'
    'background:var(--nbmn-paper,#fff);color:var(--nbmn-text,#222)">'
    '<div style="color:var(--nbmn-dim,#666)">{head}</div>'
    '<div style="display:grid;grid-template-columns:auto 1fr auto;gap:0 8px">{rows}</div></div>'
)
THEME = Theme(
    json={
        "attrs": {
            "Plot": {
                "background_fill_color": None,
                "border_fill_color": None,
                "outline_line_color": None,
            },
            "Grid": {"grid_line_color": NEUTRAL, "grid_line_alpha": 0.18},
            "Axis": {
                "axis_line_color": NEUTRAL,
                "axis_line_alpha": 0.5,
                "major_tick_line_color": None,
                "minor_tick_line_color": None,
                "major_label_text_color": NEUTRAL,
                "major_label_text_font": _FONT,
                "major_label_text_font_size": "11px",
                "major_label_standoff": 6,
                "axis_label_text_color": NEUTRAL,
                "axis_label_text_font": _FONT,
                "axis_label_text_font_size": "11px",
                "axis_label_text_font_style": "normal",
                "axis_label_standoff": 6,
            },
        }
    }
)


def encode_figure(chart: Chart, ranks: tuple[int, ...]) -> str:
    """A figure as JSON: ``{"key": …, "item": …}``."""
    item = json_item(make_figure(chart, ranks), theme=THEME)
    return json.dumps({"key": chart.key, "item": item})


def make_figure(chart: Chart, ranks: tuple[int, ...]) -> Any:
    """A figure with a data source named ``points`` of one column per curve.

    Parameters
    ----------
    chart : Chart
        Says which curves there are; of its numbers only one point is used.
    ranks : tuple of int
        Those shown; more than eight share one colour and a band.
    """
    throughput = chart.key == THROUGHPUT
    source = ColumnDataSource(_first_point(chart, ranks), name="points")
    plot = figure(
        height=230,
        min_width=220,
        sizing_mode="stretch_width",
        toolbar_location=None,
        tools="",
        # Time begins at nought, also where there is but one point to show.
        x_range=DataRange1d(range_padding=0.02, **({"start": 0.0} if throughput else {})),
        y_range=Range1d(0, 1),
        x_axis_label=chart.x_label,
        y_axis_label="samples/s per rank" if throughput and len(ranks) > 1 else chart.key,
        name=chart.key,
    )
    plot.min_border_right = 12
    plot.xgrid.visible = False
    for axis in (plot.xaxis, plot.yaxis):
        axis.ticker.desired_num_ticks = 5
    plot.xaxis.formatter = NumeralTickFormatter(format="0.[00]a")
    if throughput:
        plot.yaxis.formatter = NumeralTickFormatter(format="0.[00]a")
    if len(ranks) <= FEW:
        # Few ranks: the mean is as noisy as they are, and would hide them.
        _add_mean(plot, source, len(ranks))
        _add_ranks(plot, source, ranks)
    else:
        _add_ranks(plot, source, ranks)
        _add_mean(plot, source, len(ranks))
    _add_others(plot, source, chart)
    # A curve of few points must be seen too, and the newest point is what one looks for.
    dots = ColumnDataSource({"x": [], "y": [], "color": []}, name="dots")
    plot.scatter("x", "y", source=dots, color="color", size=5, name="marks")
    # Unlike the mean it has a value wherever a rank has one.
    highest = plot.line("x", "high", source=source, line_alpha=0, name="pointed at")
    plot.add_tools(_hover(chart, ranks, highest))
    return plot


def _first_point(chart: Chart, ranks: tuple[int, ...]) -> dict[str, list[float]]:
    """Something to set the first ranges by; the page puts all points in its place."""
    first = float(chart.x[0]) if chart.x.size else 0.0
    mean = float(chart.mean[0]) if chart.mean.size else 0.0
    return {"x": [first], **{name: [mean] for name in columns(chart, ranks)}}


def _add_ranks(plot: Any, source: ColumnDataSource, ranks: tuple[int, ...]) -> None:
    crowd = len(ranks) > CROWD
    if crowd:
        plot.varea("x", "low", "high", source=source, color=rank_color(0), alpha=0.15, name="band")
    for rank in ranks:
        plot.line(
            "x",
            f"r{rank}",
            source=source,
            line_color=rank_color(0 if crowd else rank),
            line_alpha=0.12 if crowd else 0.9,
            line_width=1 if crowd else 1.5 if len(ranks) > 1 else 2,
            line_join="round",
            name=f"rank {rank}",
        )


def _add_mean(plot: Any, source: ColumnDataSource, ranks: int) -> None:
    few = ranks <= FEW
    plot.line(
        "x",
        "mean",
        source=source,
        line_color=NEUTRAL,
        line_width=4 if few else 2.5,
        line_alpha=0.0 if ranks == 1 else 0.3 if few else 1.0,
        line_join="round",
        name="mean",
    )


def _add_others(plot: Any, source: ColumnDataSource, chart: Chart) -> None:
    for index in range(len(chart.others)):
        plot.line(
            "x",
            f"other{index}",
            source=source,
            line_color=NEUTRAL,
            line_dash=[6, 4] if index == 0 else [2, 3],
            line_width=2,
            name=f"other {index}",
        )


def _hover(chart: Chart, ranks: tuple[int, ...], pointed_at: Any) -> HoverTool:
    # The page puts the numbers into words: Bokeh writes NaN where there is no value.
    throughput = chart.key == THROUGHPUT
    unit = chart.x_label.partition("(")[2].rstrip(")")
    head = f"@x{{0.[0]}} {unit}" if throughput else "iteration @x{0,0}"
    lines = [("--nbmn-text", "mean", "@mean_text")] if len(ranks) > 1 else []
    if len(ranks) > CROWD:
        lines.append(("--nbmn-rank-0", "range", "@low_text – @high_text"))
    else:
        lines += [(f"--nbmn-rank-{rank % 8}", f"rank {rank}", f"@r{rank}_text") for rank in ranks]
    if chart.total is not None and len(ranks) > 1:
        lines.append(("--nbmn-paper", "all ranks", "@total_text"))
    for index, name in enumerate(chart.names[1:]):
        lines.append(("--nbmn-text", text.label(name), f"@other{index}_text"))
    return HoverTool(
        renderers=[pointed_at],
        tooltips=TOOLTIP.format(head=head, rows="".join(map(_tooltip_row, lines))),
        mode="vline",
        line_policy="nearest",
        point_policy="follow_mouse",
        show_arrow=False,
    )


def _tooltip_row(line: tuple[str, str, str]) -> str:
    color, name, value = line
    return (
        '<i style="width:10px;height:3px;align-self:center;border-radius:2px;'
        f'background:var({color},{NEUTRAL})"></i>'
        f'<span>{escape(name)}</span><b style="text-align:right">{value}</b>'
    )
