"""A board beside an open file browser in a narrow window, and after its run in both themes."""

from __future__ import annotations

import itertools

import pytest

_BOARD = """
import threading, time
from nbmn.dashboard import LiveBoard
from nbmn.debug.stacks import Place, fold, render_html
from nbmn.debug.states import RankState
from nbmn.records import Frame, Heartbeat, RunStarted, Step

def ask():
    code = "loss = train_one_step(model, optimizer, next(batches), clip=1.0, scale=128)"
    frames = (
        Frame("cell [2] line 14", "<module>", code),
        Frame("cell [2] line 9", "train_one_step", code),
    )
    states = [RankState(rank, "running", "", 1.0) for rank in (0, 1)]
    return render_html(fold([Place(state, frames) for state in states]))

board = LiveBoard(size=2, run="run", title="mlp", where=ask)
board.show()
start = time.time() - 2
for rank in (0, 1):
    board.feed([RunStarted(rank, "run", start, iterations=30)])
    board.feed(
        Step(rank, "run", start + i / 10, i,
             {"loss": 2 / i + 0.1 * rank, "accuracy": 0.5}, 32)
        for i in range(1, 11)
    )
    board.feed([Step(rank, "run", start + 1, 10, {"validation/main/loss": 0.9})])

def beat():
    while not ended.wait(0.2):
        waiting = "waiting", "allreduce", "cell [2] line 14", 9.0
        board.feed([Heartbeat(rank, "run", time.time(), *waiting) for rank in (0, 1)])

ended = threading.Event()
threading.Thread(target=beat).start()
"""
_AXES = """(async () => {
  const found = {};
  for (const loading of Object.values(globalThis.nbmnBokeh ?? {})) {
    for (const doc of (await loading).documents) {
      const { name, x_range, y_range } = doc.roots()[0];
      const dots = doc.get_model_by_name("dots").data.x;
      found[name] = {
        x: [x_range.start, x_range.end], y: [y_range.start, y_range.end], dots: [...dots] };
    }
  }
  return found;
})()"""
_TABLE = ".nbmn-board .nbmn-table"
# Cells to the right of what can be seen without scrolling: [pixels, text].
_CUT = """(selector) => {
  return [...document.querySelectorAll(selector)].flatMap((cell) => {
    const range = document.createRange();
    range.selectNodeContents(cell);
    const around = cell.closest(".nbmn-legend, .nbmn-pane, .nbmn-finished > div");
    const edge = around.getBoundingClientRect();
    const { right, width } = range.getBoundingClientRect();
    return width && right > edge.right + 1 ? [[right - edge.right, cell.textContent]] : [];
  });
}"""


def narrow(page):
    """The window of somebody who has the file browser open."""
    page.set_viewport_size({"width": 800, "height": 900})
    page.evaluate('window.jupyterapp.commands.execute("filebrowser:activate") && undefined')
    page.locator(".jp-DirListing").first.wait_for()


def in_both_themes(book, keep_screenshot, name, part):
    page = book.page
    for theme in ("Light", "Dark"):
        book.set_theme(f"JupyterLab {theme}")
        page.locator(part).last.scroll_into_view_if_needed()
        page.wait_for_timeout(300)
        keep_screenshot(page, f"{name}_{theme.lower()}")


def test_nothing_is_cut_off_in_a_narrow_window(notebook, page, keep_screenshot):
    book = notebook("board_narrow", [_BOARD, "ended.set(); board.finish('done')"])
    narrow(page)
    book.run(0)
    page.locator(f"{_TABLE} .nbmn-below td", has_text="in allreduce at cell").first.wait_for(
        timeout=20_000
    )
    book.wait_for_boards(
        lambda boards: len(boards) == 3 and all(len(b["data"]["x"]) for b in boards)
    )
    # Bokeh draws a moment after it has the data.
    page.wait_for_function(f"async () => (await {_AXES}).loss?.dots?.length === 3")
    assert page.evaluate(_CUT, f"{_TABLE} td, {_TABLE} th") == []
    keep = page.evaluate(_AXES)
    assert keep["samples/s"]["x"][0] == 0
    assert keep["accuracy"]["y"] == pytest.approx([0.45, 0.55])
    assert len(keep["loss"]["dots"]) == 3  # two newest, and the validation's one
    in_both_themes(book, keep_screenshot, "narrow_live", _TABLE)

    page.get_by_role("button", name="Where?").click()
    page.locator(".nbmn-pane td", has_text="train_one_step").first.wait_for()
    assert page.evaluate(_CUT, ".nbmn-pane td") == []
    page.locator(".nbmn-pane").scroll_into_view_if_needed()
    keep_screenshot(page, "narrow_where")

    # With the room there is elsewhere, what a rank does has a column of its own again.
    page.set_viewport_size({"width": 1280, "height": 900})
    page.locator(f"{_TABLE} td.nbmn-rest", has_text="in allreduce at cell").first.wait_for(
        timeout=20_000
    )
    page.locator(f"{_TABLE} .nbmn-below td").first.wait_for(state="hidden")
    in_both_themes(book, keep_screenshot, "wide_live", _TABLE)

    narrow(page)
    book.run(1)
    page.locator("img[alt='Curves of loss per rank']").wait_for()
    assert page.evaluate(_CUT, ".nbmn-finished td, .nbmn-finished th") == []
    edges = page.evaluate(
        '[...document.querySelectorAll("img[alt^=Curves]")].map((i) => i.getBoundingClientRect())'
    )
    assert len(edges) == 3
    assert all(
        below["y"] >= above["y"] + above["height"] for above, below in itertools.pairwise(edges)
    )
    assert all(edge["width"] > 0.8 * 406 for edge in edges)  # their text has 12 pixels of 406
    in_both_themes(book, keep_screenshot, "narrow_over", ".nbmn-finished table")
    page.set_viewport_size({"width": 1280, "height": 900})
    tops = 'Array.from(document.querySelectorAll("img[alt^=Curves]"), (i) => i.offsetTop)'
    page.wait_for_function(f"{tops}[0] === {tops}[1]", timeout=10_000)  # two in a row again
    in_both_themes(book, keep_screenshot, "wide_over", ".nbmn-finished table")
    assert page.script_errors == []
