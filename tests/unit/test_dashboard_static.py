"""What stays in the notebook, and the board outside Jupyter."""

from __future__ import annotations

import base64
import dataclasses
import json
import math
import re
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from nbmn.dashboard import LiveBoard, widget
from nbmn.dashboard.encoding import encode_state
from nbmn.dashboard.figures import make_figure
from nbmn.dashboard.palette import DARK, DIM, LINE, rank_color
from nbmn.dashboard.static_view import html, plain
from nbmn.records import RunEnded, RunStarted, Step

_SVG = "{http://www.w3.org/2000/svg}"


def board(size, steps=300, **options):
    made = LiveBoard(size=size, run="run", title="<b>net</b>", **options)
    start = time.time()
    made.feed([RunStarted(rank, "run", start, iterations=steps) for rank in made.ranks])
    made.feed(
        Step(rank, "run", start + 0.01 * i, i, {"loss": 1 / i + rank, "accuracy": i / steps}, 16)
        for i in range(1, steps + 1)
        for rank in made.ranks
    )
    return made


def pictures(page):
    found = re.findall(r'src="data:image/svg\+xml;base64,([^"]+)"', page)
    return [ElementTree.fromstring(base64.b64decode(data)) for data in found]


def paths_of(page):
    """Path data of each curve by its name, such as ``loss-0``."""
    every = [path for root in pictures(page) for path in root.iter(f"{_SVG}path")]
    return {path.get("id"): path.get("d") for path in every if path.get("id")}


@pytest.mark.parametrize(("size", "limit"), [(1, 20_000), (2, 25_000), (8, 60_000), (64, 150_000)])
def test_static_page_has_a_curve_per_rank_and_stays_small(size, limit):
    page = html(board(size).snapshot())
    assert len(page) < limit
    paths = paths_of(page)
    for key in ("loss", "samples/s", "accuracy"):
        for rank in range(size):
            assert paths[f"{key}-{rank}"].count("l") >= 3
    assert page.count("<tr>") == 1 + size + (size > 1)


def test_static_curve_goes_where_the_values_go():
    path = paths_of(html(board(2).snapshot()))["accuracy-1"]
    start, *steps = re.findall(r"(-?\d+)[ ]?(-?\d+)", path)
    assert all(int(right) >= 0 and int(down) <= 0 for right, down in steps)
    rise = -sum(int(down) for _, down in steps)
    assert rise > 0.75 * int(start[1])


@pytest.mark.parametrize("wide", [840, 370])
def test_labels_of_the_pictures_are_readable_in_any_window(wide):
    """In the 840 pixels that a notebook's output has in a window of 1280, and in a narrow one."""
    roots = pictures(html(board(2).snapshot()))
    assert len(roots) == 3
    for root in roots:
        shown_at = min(1, wide / float(root.get("width")))
        sizes = [root.get("font-size"), *(t.get("font-size") for t in root.iter(f"{_SVG}text"))]
        assert min(float(size) for size in sizes if size) * shown_at >= 10.5
    # Two in a row of a usual window, each as high as on the live board: the page does not jump.
    assert 2 * float(roots[0].get("width")) + 8 <= 825
    assert 240 <= float(roots[0].get("height")) <= 280


def test_the_curves_of_no_rank_are_explained_in_the_colour_of_the_page():
    values = {"main/loss": 1.0, "validation/main/loss": 2.0}
    made = LiveBoard(size=2, run="run")
    made.feed(Step(rank, "run", time.time(), i, values) for rank in (0, 1) for i in (1, 2))
    page = html(made.snapshot())
    assert "<div>thick: mean of the ranks; dashed: validation loss</div>" in page
    assert "thick" not in "".join("".join(root.itertext()) for root in pictures(page))
    assert "thick" not in html(board(1).snapshot())


def test_title_and_messages_are_escaped():
    made = board(2)
    made.feed([RunEnded(1, "run", time.time(), "failed", "<script>alert(1)</script>")])
    page = html(made.snapshot())
    assert "<script" not in page
    assert "&lt;b&gt;net&lt;/b&gt;" in page
    assert "failed" in page


def test_nothing_to_show_is_still_a_page():
    made = LiveBoard(size=3, run="run")
    assert "rank" in html(made.snapshot())
    assert plain(made.snapshot()).startswith("training: running")


def labels(root):
    return [float(t.text) for t in root.iter(f"{_SVG}text") if re.fullmatch(r"-?[\d.]+", t.text)]


def test_a_single_point_is_a_dot_to_be_seen():
    made = LiveBoard(size=1, run="run")
    now = time.time()
    made.feed([Step(0, "run", now, i, {"loss": 1.0}) for i in range(1, 30)])
    made.feed([Step(0, "run", now, 29, {"validation/main/loss": 1.2})])
    made.feed([Step(0, "run", now, 29, {"accuracy": 0.5})])
    page = html(made.snapshot())
    loss, accuracy = pictures(page)
    # Four subunits to the pixel.
    lone = {path.get("d") for path in loss.iter(f"{_SVG}path") if path.get("stroke-width") == "20"}
    assert len(lone) == 1  # the validation's; 29 points make a line
    assert paths_of(page)["accuracy-0"] in {
        path.get("d") for path in accuracy.iter(f"{_SVG}path") if path.get("stroke-width") == "20"
    }


def test_every_one_of_few_points_is_a_dot():
    made = LiveBoard(size=1, run="run")
    made.feed([Step(0, "run", time.time(), i, {"loss": 1.0 / i}) for i in (1, 2, 3)])
    (root,) = pictures(html(made.snapshot()))
    (dots,) = [p.get("d") for p in root.iter(f"{_SVG}path") if p.get("stroke-width") == "20"]
    assert dots.count("h0") == 3
    line, *_ = paths_of(html(made.snapshot())).values()
    assert re.findall(r"-?\d+ -?\d+", dots) == re.findall(r"-?\d+ -?\d+", line)


def test_axes_begin_at_nought_seconds_and_stay_near_a_value_that_does_not_change():
    made = LiveBoard(size=2, run="run")
    start = time.time()
    for rank in (0, 1):
        made.feed([RunStarted(rank, "run", start)])
        made.feed(Step(rank, "run", start + i / 8, i, {"accuracy": 0.5}, 4) for i in range(1, 6))
    shown = made.snapshot()
    accuracy, throughput = pictures(html(shown))
    values = [v for v in labels(accuracy) if v < 1]
    assert min(values) >= 0.4
    assert max(values) <= 0.6
    assert min(labels(throughput)) == 0
    plots = {chart.key: make_figure(chart, shown.ranks) for chart in shown.charts}
    assert plots["samples/s"].x_range.start == 0
    layout = {c["key"]: c["limits"] for c in json.loads(encode_state(shown))["charts"]}
    assert layout["accuracy"] == pytest.approx([0.45, 0.55])
    assert layout["samples/s"] == pytest.approx([0, 1.1 * 32])


@pytest.mark.parametrize("steps", [300, 2500, 10_000, 30_000])
def test_no_label_of_an_axis_ends_outside_of_its_picture(steps):
    made = LiveBoard(size=1, run="run")
    made.feed([Step(0, "run", time.time(), i, {"loss": 1.0}) for i in (1, steps)])
    (loss,) = pictures(html(made.snapshot()))
    middle = [each for each in loss.iter(f"{_SVG}text") if each.get("text-anchor") == "middle"]
    below = [each for each in middle if each.text[0].isdigit()]
    assert len(below) > 2
    for each in below:
        # DejaVu Sans is the widest of the usual fonts: a digit takes 0.64 of the size.
        half = 0.64 * 12 * len(each.text) / 2
        assert half <= float(each.get("x")) <= float(loss.get("width")) - half


def test_a_run_too_short_for_a_curve_of_its_throughput_shows_none():
    made = LiveBoard(size=2, run="run")
    start = time.time()
    made.feed([RunStarted(rank, "run", start) for rank in (0, 1)])
    made.feed(
        Step(rank, "run", start + 0.1 * i, i, {"loss": 1.0}, 16) for i in (1, 2) for rank in (0, 1)
    )
    page = html(made.snapshot())
    assert len(pictures(page)) == 1
    assert "samples/s</th>" in page


@pytest.mark.parametrize(
    ("values", "limits"),
    [
        ([1.0, 3.0], (0.84, 3.16)),
        ([0.0, 0.0], (-1, 1)),
        ([-2.0, -2.0], (-2.2, -1.8)),
        ([0.1 + 0.2, 0.3], (0.27, 0.33)),
        ([math.nan, math.inf], (0, 1)),
        ([-1e308, 1e308], (-3.48e38, 3.48e38)),
    ],
)
def test_limits_of_an_axis(values, limits):
    made = LiveBoard(size=1, run="run")
    made.feed([Step(0, "run", time.time(), i, {"x": v}) for i, v in enumerate(values, 1)])
    (chart,) = json.loads(encode_state(made.snapshot()))["charts"]
    assert chart["limits"] == pytest.approx(limits)


def test_numbers_are_to_the_right_and_the_table_may_scroll():
    page = html(board(2).snapshot())
    assert '<div style="overflow-x:auto"><table>' in page
    for row in re.findall("<tr>(.*?)</tr>", page):
        sides = re.findall(r'<t[hd] style="text-align:(\w+)"', row)
        assert sides == ["left"] * 2 + ["right"] * 4


def test_a_dark_page_has_the_colours_of_the_live_board():
    sheet = (Path(widget.__file__).parent / "static" / "board.css").read_text()
    light, dark = (
        {name: color.upper() for name, color in re.findall(r"--nbmn-([\w-]+): (#\w+)", block)}
        for block in re.findall(
            r"(?:^:root|data-nbmn-theme=\"dark\"\]) \{(.*?)\}", sheet, re.M | re.S
        )
    )
    for rank in range(8):
        name = f"rank-{rank}"
        assert rank_color(rank) == light[name]
        assert DARK.get(rank_color(rank), rank_color(rank)) == dark.get(name, light[name])
    assert (DARK[DIM], DARK[LINE]) == (dark["dim"], dark["text"])
    loss, _, _ = pictures(html(board(2).snapshot()))
    (style,) = loss.iter(f"{_SVG}style")
    assert style.text.startswith("@media(prefers-color-scheme:dark)")
    for color in (rank_color(0), LINE):
        assert f'[stroke="{color}"]{{stroke:{DARK[color]}}}' in style.text
        assert any(path.get("stroke") == color for path in loss.iter(f"{_SVG}path"))


def test_other_runs_are_ignored_and_a_terminal_gets_one_line(capsys):
    made = board(2)
    made.feed([Step(0, "another", time.time(), 999, {"loss": 0.0})])
    made.show()
    assert capsys.readouterr().out == ""
    made.finish("done")
    made.finish("failed")
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert "done, iteration 300 of 300" in out
    assert "loss 0.5033" in out


def test_ranks_must_be_some_of_the_world():
    assert LiveBoard(size=4, run="r", ranks=[3, 1]).ranks == (1, 3)
    for wrong in ([], [4], [-1]):
        with pytest.raises(ValueError, match=r"ranks must be some of 0 … 3"):
            LiveBoard(size=4, run="r", ranks=wrong)
    with pytest.raises(ValueError, match="status"):
        LiveBoard(size=1, run="r").finish("over")


@pytest.mark.parametrize("size", [1, 2, 8, 9, 64])
def test_figure_has_a_column_and_a_line_per_rank(size):
    shown = board(size, steps=5).snapshot()
    for chart in shown.charts:
        plot = make_figure(chart, shown.ranks)
        source = plot.select_one({"name": "points"})
        for rank in range(size):
            assert f"r{rank}" in source.column_names
            assert plot.select_one({"name": f"rank {rank}"}) is not None
        # Not by the mean: it has gaps where one rank still lacks a value.
        assert [r.glyph.y for r in plot.hover.renderers] == ["high"]
        assert ("all ranks" in plot.hover.tooltips) == (chart.key == "samples/s" and size > 1)


@pytest.mark.parametrize(
    ("x_label", "unit"), [("time (s)", "s"), ("time (min)", "min"), ("time (h)", "h")]
)
def test_the_tooltip_names_the_unit_of_time(x_label, unit):
    shown = board(2, steps=5).snapshot()
    (chart,) = [chart for chart in shown.charts if chart.key == "samples/s"]
    plot = make_figure(dataclasses.replace(chart, x_label=x_label), shown.ranks)
    assert f"@x{{0.[0]}} {unit}</div>" in plot.hover.tooltips
