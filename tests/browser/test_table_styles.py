"""Tables of %mn_status, %mn_where and %mn_diff as a page draws them, light and dark."""

from __future__ import annotations

_TABLES = """
from IPython.display import HTML, display
from nbmn.cluster.differences import show_comparison
from nbmn.cluster.tables import table
from nbmn.debug.comparison import compare
from nbmn.debug.fingerprint import fingerprint
from nbmn.debug.stacks import Place, fold, render_html
from nbmn.debug.states import RankState
from nbmn.records import Frame

rows = [[str(rank), "host", "CPU", "runs cell [5] for 1.0 s"] for rank in range(3)]
display(HTML(table("3 ranks", ["rank", "host", "device", "now"], rows, "%%mn runs a cell").html))
frames = (
    Frame("cell [5] line 12", "<module>", "train(model)"),
    Frame("train.py line 3", "train", "loss = model(x, t) + 0.5 * sum(p.norm() for p in params)"),
)
display(HTML(render_html(fold([Place(RankState(0, "running", seconds=5.0), frames)]))))
told = {r: fingerprint({"a long name of a setting": "x" * 70 + str(r // 2)}) for r in range(3)}
differing = compare({rank: each.leaves for rank, each in told.items()})
display(HTML(show_comparison("settings", differing).html))
"""
_ALIGNED = """(selector) => Array.from(
  document.querySelectorAll(selector), (cell) => getComputedStyle(cell).textAlign
)"""
_HEIGHT = """(cell) => {
  const range = document.createRange();
  range.selectNodeContents(cell);
  return range.getBoundingClientRect().height;
}"""


def test_text_begins_at_the_left_edge(notebook, keep_screenshot):
    book = notebook("tables", [_TABLES])
    book.run(0)
    page = book.page
    page.locator(".nbmn-diff").wait_for()
    for theme in ("Light", "Dark"):
        book.set_theme(f"JupyterLab {theme}")
        page.locator("#jupyterlab-splash").wait_for(state="detached")
        page.wait_for_timeout(500)  # it fades
        keep_screenshot(page, f"tables_{theme.lower()}")
        for block, cells in ((".nbmn-ranks", 4 * 4), (".nbmn-where", 2 * 3), (".nbmn-diff", 2 * 4)):
            seen = page.evaluate(_ALIGNED, f"{block} td, {block} th")
            assert seen == ["left"] * cells
    book.set_theme("JupyterLab Light")
    page.set_viewport_size({"width": 760, "height": 900})  # too narrow for the table
    line = page.locator(".nbmn-diff th").first.evaluate(_HEIGHT)
    assert page.locator(".nbmn-diff .nbmn-what").first.evaluate(_HEIGHT) > 1.5 * line
    for column in ("nbmn-from", "nbmn-odd"):
        cell = page.locator(f".nbmn-diff .{column}").first
        assert cell.inner_text().startswith("rank")
        assert cell.evaluate(_HEIGHT) < 1.5 * line
