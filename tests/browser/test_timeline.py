"""The timeline of %mn_trace in a real page: a live figure now, a picture in the saved notebook."""

from __future__ import annotations

import base64
import re

_TIMELINES = """
from nbmn.dashboard.lanes import lanes
from nbmn.dashboard.timeline_page import show_timeline
from nbmn.records import Span, Timeline

def spans(rank, steps):
    for i in range(steps):
        begin, late = 0.06 * i, 0.03 if rank == 1 else 0.0
        yield Span("data", begin, begin + 0.004, "cell [5] line 2")
        yield Span("forward", begin + 0.004, begin + 0.012 + late, "cell [5] line 3")
        yield Span("backward", begin + 0.012 + late, begin + 0.02 + late, "cell [5] line 4")
        yield Span("average_gradients", begin + 0.02 + late, begin + 0.054, "cell [5] line 5",
                   "7", i + 1, 4_000_000)
        yield Span("update", begin + 0.054, begin + 0.06, "cell [5] line 5")

def ends(steps):
    return tuple(0.06 * (i + 1) for i in range(steps))

def show(size, steps):
    told = [
        Timeline(rank, "r", 1.0, 1.0, tuple(spans(rank, steps)), ends(steps))
        for rank in range(size)
    ]
    show_timeline(lanes(told), live=True)
"""
_BARS = """async () => {
  for (const loading of Object.values(globalThis.nbmnBokeh ?? {})) {
    for (const doc of (await loading).documents) {
      const bars = doc.get_model_by_name("bars");
      if (bars) return bars.data.kind.length;
    }
  }
  return 0;
}"""

_RANGE = """async () => {
  for (const loading of Object.values(globalThis.nbmnBokeh ?? {})) {
    for (const doc of (await loading).documents) {
      const plot = doc.get_model_by_name("timeline");
      if (plot) return [plot.x_range.start, plot.x_range.end];
    }
  }
}"""


def _range(page):
    return [round(edge, 6) for edge in page.evaluate(_RANGE)]


def _wait_for_bars(page, count):
    for _ in range(200):
        if page.evaluate(_BARS) == count and page.locator(".nbmn-timeline .bk-Figure").count():
            return
        page.wait_for_timeout(50)
    raise TimeoutError(f"the page holds {page.evaluate(_BARS)} bars, not {count}")


def test_a_live_figure_and_what_is_saved(notebook, keep_screenshot):
    book = notebook("timeline", [_TIMELINES, "show(4, 6)"])
    book.run(0)
    book.run(1)
    # Per step: data, forward, backward, communication, update; and waiting on three of four ranks.
    _wait_for_bars(book.page, 6 * (4 * 5 + 3))
    keep_screenshot(book.page, "timeline_light")
    plot = book.page.locator(".nbmn-timeline").first
    box = plot.bounding_box()
    plot.hover(position={"x": box["width"] * 0.2, "y": 40})
    tooltip = book.page.locator(".bk-tooltip, [class*=tooltip]").filter(has_text="cell [5]").first
    tooltip.wait_for()
    words = tooltip.inner_text()
    assert "rank 1" in words
    assert re.search(r"cell \[5\] line \d", words)
    book.page.mouse.move(5, 5)
    book.set_theme("JupyterLab Dark")
    book.page.locator("#jupyterlab-splash").wait_for(state="detached")
    book.page.wait_for_timeout(500)  # it fades
    keep_screenshot(book.page, "timeline_dark")
    book.set_theme("JupyterLab Light")

    saved = book.save()
    (output,) = saved["cells"][1]["outputs"]
    assert set(output["data"]) == {"text/plain", "text/html"}
    markup = "".join(output["data"]["text/html"])
    assert "rank 1 is late: the others wait for it" in markup
    picture = base64.b64decode(re.search(r"base64,([^\"]+)", markup)[1]).decode()
    assert picture.count("<path") > 6 * 23
    assert "script" not in markup
    assert len(markup) < 60_000

    book.reload()
    _wait_for_bars(book.page, 6 * (4 * 5 + 3))
    assert book.page.script_errors == []


def test_a_stretch_can_be_enlarged(notebook):
    book = notebook("timeline_zoom", [_TIMELINES, "show(2, 6)"])
    book.run(0)
    book.run(1)
    _wait_for_bars(book.page, 6 * (2 * 5 + 1))
    plot = book.page.locator(".nbmn-timeline").first
    box = plot.bounding_box()
    whole = _range(book.page)
    assert whole == [0, 360]
    book.page.mouse.move(box["x"] + 0.3 * box["width"], box["y"] + 30)
    book.page.mouse.down()
    book.page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 30, steps=5)
    book.page.mouse.up()
    book.page.wait_for_function(f"async () => ({_RANGE})().then(([a, b]) => b - a < 150)")
    book.page.mouse.dblclick(box["x"] + 0.5 * box["width"], box["y"] + 30)
    book.page.wait_for_function(
        f"async () => ({_RANGE})().then(([a, b]) => Math.abs(b - a - 360) < 1e-6)"
    )
    assert book.page.script_errors == []
