"""What stays in the notebook, and the board outside Jupyter."""

from __future__ import annotations

import base64
import dataclasses
import re
import time
import xml.etree.ElementTree as ElementTree

import pytest

from nbmn.dashboard import LiveBoard
from nbmn.dashboard.figures import make_figure
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


def picture(page):
    data = re.search(r'src="data:image/svg\+xml;base64,([^"]+)"', page)[1]
    return ElementTree.fromstring(base64.b64decode(data))


@pytest.mark.parametrize(("size", "limit"), [(1, 20_000), (2, 25_000), (8, 60_000), (64, 150_000)])
def test_static_page_has_a_curve_per_rank_and_stays_small(size, limit):
    page = html(board(size).snapshot())
    assert len(page) < limit
    paths = {path.get("id"): path.get("d") for path in picture(page).iter(f"{_SVG}path")}
    for key in ("loss", "samples/s", "accuracy"):
        for rank in range(size):
            assert paths[f"{key}-{rank}"].count("l") >= 3
    assert page.count("<tr>") == 1 + size + (size > 1)


def test_static_curve_goes_where_the_values_go():
    root = picture(html(board(2).snapshot()))
    path = next(p.get("d") for p in root.iter(f"{_SVG}path") if p.get("id") == "accuracy-1")
    start, *steps = re.findall(r"(-?\d+)[ ]?(-?\d+)", path)
    assert all(int(right) >= 0 and int(down) <= 0 for right, down in steps)
    rise = -sum(int(down) for _, down in steps)
    assert rise > 0.8 * int(start[1])


def test_labels_of_the_picture_are_readable_in_a_usual_window():
    """Three charts, in the 840 pixels that a notebook's output has in a window of 1280."""
    root = picture(html(board(2).snapshot()))
    shown_at = min(1, 840 / float(root.get("width")))
    sizes = [root.get("font-size"), *(t.get("font-size") for t in root.iter(f"{_SVG}text"))]
    assert min(float(size) for size in sizes if size) * shown_at >= 11
    # Two rows, each as high as one of the live board: the page does not jump.
    assert 480 <= float(root.get("height")) * shown_at <= 560


def test_the_curves_of_no_rank_are_explained_in_the_colour_of_the_page():
    values = {"main/loss": 1.0, "validation/main/loss": 2.0}
    made = LiveBoard(size=2, run="run")
    made.feed(Step(rank, "run", time.time(), i, values) for rank in (0, 1) for i in (1, 2))
    page = html(made.snapshot())
    assert "<div>grey: mean of the ranks; dashed: validation loss</div>" in page
    assert "grey" not in "".join(picture(page).itertext())
    assert "grey" not in html(board(1).snapshot())


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


def test_single_point_and_constant_curve_are_drawn():
    made = board(1, steps=1)
    assert picture(html(made.snapshot())) is not None


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
