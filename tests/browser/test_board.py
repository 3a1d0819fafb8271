"""The live board in a real page, fed with made-up records while its cell blocks the kernel."""

from __future__ import annotations

import base64
import json
import os
import re
import signal

import pytest

PlaywrightTimeout = pytest.importorskip("playwright.sync_api").TimeoutError

_FEED = """
import math, threading, time
from nbmn.dashboard import LiveBoard
from nbmn.records import Heartbeat, RunEnded, RunStarted, Step

def feed(board, size, steps, period, run, total):
    # From a thread, as the listener does it.
    now = time.time()
    epochs = total and 4.0
    board.feed([RunStarted(rank, run, now, "made up", total, epochs) for rank in range(size)])
    for i in range(1, steps + 1):
        time.sleep(period)
        now = time.time()
        board.feed([
            Step(rank, run, now, i, {"loss": 2 / i + 0.1 * rank, "accuracy": 1 - 1 / (i + rank)},
                 32, 4 * i / steps)
            for rank in range(size)
        ])
        if i % 5 == 0:
            board.feed([Heartbeat(rank, run, now, "running") for rank in range(size)])
    board.feed([RunEnded(rank, run, time.time(), "done") for rank in range(size)])

def train(size, steps, period, run="run", total=...):
    board = LiveBoard(size=size, run=run, title="before")
    board.show()
    thread = threading.Thread(target=feed, args=(board, size, steps, period, run,
                              steps if total is ... else total))
    thread.start()
    while thread.is_alive():  # blocks the kernel's main thread, as waiting for the ranks does
        thread.join(0.1)
    board.finish("done")
"""


def chart(boards, key):
    """The one chart of that name."""
    (found,) = [board["data"] for board in boards if board["key"] == key]
    return found


def holds(key, ranks, points):
    """Whether the chart ``key`` is there once, with that many points for each rank."""

    def enough(boards):
        found = [board["data"] for board in boards if board["key"] == key]
        return len(found) == 1 and all(
            len([y for y in found[0].get(f"r{rank}", []) if y is not None]) >= points
            for rank in range(ranks)
        )

    return enough


@pytest.mark.parametrize("size", [2, 8])
def test_curves_of_every_rank_move_while_the_cell_runs(notebook, keep_screenshot, size):
    book = notebook(f"board_{size}", [_FEED, f"train({size}, 160, 0.05)"])
    book.run(0)
    book.start(1)
    early = book.wait_for_boards(holds("loss", size, 5))
    later = book.wait_for_boards(
        lambda boards: (
            holds("loss", size, len(chart(early, "loss")["x"]) + 20)(boards)
            and holds("samples/s", size, 4)(boards)
            and holds("accuracy", size, 20)(boards)
        )
    )
    book.wait_for_status("busy")  # though the kernel has answered the board's widget
    assert book.is_running(1), "the curves came only after the cell had ended"
    keep_screenshot(book.page, f"board_{size}_running")
    loss = chart(later, "loss")
    for rank in range(size):
        for x, y in list(zip(loss["x"], loss[f"r{rank}"], strict=True))[:20]:
            assert y == pytest.approx(2 / x + 0.1 * rank, rel=1e-6)
        moving = [y for y in chart(later, "samples/s")[f"r{rank}"] if y is not None]
        assert all(0 < y < 2 * 32 / 0.05 for y in moving)
    book.wait(1)
    book.wait_for_status("idle")
    assert book.page.script_errors == []
    keep_screenshot(book.page, f"board_{size}_done")
    saved = book.save()
    assert book.path.stat().st_size < 150_000
    (output,) = saved["cells"][1]["outputs"]
    assert set(output["data"]) == {"text/plain", "text/html"}
    html = "".join(output["data"]["text/html"])
    pictures = re.findall(r"base64,([^\"]+)", html)
    picture = "".join(base64.b64decode(data).decode() for data in pictures)
    for key in ("loss", "samples/s", "accuracy"):
        for rank in range(size):
            path = re.search(f'id="{key}-{rank}" d="([^"]+)"', picture)[1]
            assert path.count("l") > 10
    assert "iteration 160 of 160" in html


_CURVES_COME = """
import time
from nbmn.dashboard import LiveBoard
from nbmn.records import RunStarted, Step

def curves_come():
    board = LiveBoard(size=2, run="run", title="made up")
    board.show()
    board.feed([RunStarted(rank, "run", time.time(), "made up") for rank in (0, 1)])
    for i in range(1, 31):
        values = {"loss": 1 / i, **{f"part {n}/loss": 1 / n for n in range(1, i)}}
        board.feed([Step(rank, "run", time.time(), i, values, 32) for rank in (0, 1)])
        time.sleep(0.1)
    board.finish("done")
"""


def test_a_chart_that_changes_while_it_is_drawn_is_there_once(notebook):
    book = notebook("board_curves", [_CURVES_COME, "curves_come()"])
    book.run(0)
    book.start(1)
    most = 0
    while book.is_running(1):
        keys = [board["key"] for board in book.boards()]
        assert len(keys) == len(set(keys))
        most = max(most, len(keys))
        book.page.wait_for_timeout(20)
    assert most == 2
    book.wait_for_boards(lambda boards: not boards)
    assert book.page.script_errors == []


def test_reload_during_a_blocked_cell_keeps_the_history(notebook, keep_screenshot):
    book = notebook("board_reload", [_FEED, "train(2, 400, 0.05)"])
    book.run(0)
    book.start(1)
    before = chart(book.wait_for_boards(holds("loss", 2, 40)), "loss")
    book.save()
    book.reload()
    after = chart(book.wait_for_boards(holds("loss", 2, len(before["x"])), timeout=15), "loss")
    assert after["x"][: len(before["x"])] == before["x"]
    assert after["r1"][: len(before["x"])] == before["r1"]
    # Still live, and so the kernel's main thread still in the cell, which ends with step 400.
    later = book.wait_for_boards(holds("loss", 2, len(after["x"]) + 20), timeout=15)
    assert len(chart(later, "loss")["x"]) < 400
    keep_screenshot(book.page, "board_reloaded")
    assert book.page.script_errors == []


def test_two_boards_share_one_bokeh(notebook):
    book = notebook("board_two", [_FEED, "train(1, 20, 0.02, 'a')", "train(1, 400, 0.02, 'b')"])
    book.run(0)
    book.run(1)
    book.start(2)
    book.wait_for_boards(holds("loss", 1, 10))
    assert book.page.evaluate("Object.keys(globalThis.nbmnBokeh).length") == 1
    assert book.page.evaluate("globalThis.Bokeh") is None
    assert "bokeh" not in json.dumps(book.save()["metadata"]).lower()
    book.wait(2)


def status_is(word):
    """A condition in the page: what the chip of the board says."""
    return f'document.querySelector(".nbmn-chip")?.textContent === "{word}"'


# Not a transition, such as the one in which the bar empties.
_ANIMATED = (
    'document.querySelector(".nbmn-fill").getAnimations().some((a) => a instanceof CSSAnimation)'
)


def test_board_of_a_restarted_kernel_says_so(lab, notebook, keep_screenshot):
    book = notebook("board_restart", [_FEED, "train(2, 2000, 0.05, total=None)"])
    book.run(0)
    book.start(1)
    book.wait_for_boards(holds("loss", 2, 20))
    assert book.page.evaluate(status_is("running"))
    assert book.page.evaluate(_ANIMATED)
    # Questions to the busy main thread wait for it when the kernel goes.
    book.save()
    book.reload()
    book.wait_for_boards(holds("loss", 2, 20))
    book.restart()
    book.page.wait_for_function(status_is("disconnected"), timeout=20_000)
    assert not book.page.evaluate(_ANIMATED)
    assert "No word from the kernel" in book.page.inner_text(".nbmn-message")
    keep_screenshot(book.page, "board_restarted")
    log = lab.log.read_text()
    assert "Event loop is closed" not in log
    assert "Exception in callback" not in log
    assert book.page.script_errors == []


def test_a_sleeping_page_does_not_take_the_kernel_for_dead(notebook):
    book = notebook("board_asleep", ["import os; os.getpid()", _FEED, "train(2, 2000, 0.05)"])
    book.run(0)
    book.run(1)
    book.start(2)
    book.wait_for_boards(holds("loss", 2, 5))
    (output,) = book.outputs(0)
    kernel = int("".join(output["data"]["text/plain"]))
    hide = 'Object.defineProperty(document, "hidden", {configurable: true, get: () => %s})'
    book.page.evaluate(hide % "true")
    os.kill(kernel, signal.SIGSTOP)
    try:
        with pytest.raises(PlaywrightTimeout):
            book.page.wait_for_function(status_is("disconnected"), timeout=13_000)
        book.page.evaluate(hide % "false")
        book.page.wait_for_function(status_is("disconnected"), timeout=20_000)
    finally:
        os.kill(kernel, signal.SIGCONT)
    book.page.wait_for_function(status_is("running"), timeout=10_000)
    assert book.is_running(2)


_AHEAD = """
board = LiveBoard(size=2, run="run")
board.show()
now = time.time()
board.feed(
    Step(rank, "run", now, i, {"loss": 2.0 + rank})
    for rank in (0, 1) for i in range(1, 41) if rank == 0 or i <= 10
)
"""


def test_tooltip_of_a_rank_that_is_ahead(notebook):
    book = notebook("board_ahead", [_FEED, _AHEAD, "board.finish('done')"])
    book.run(0)
    book.run(1)
    loss = chart(book.wait_for_boards(holds("loss", 1, 40)), "loss")
    assert [y is not None for y in loss["mean"]] == [True] * 10 + [False] * 30
    plot = book.page.locator(".nbmn-plot").first
    plot.hover(position={"x": plot.bounding_box()["width"] * 0.75, "y": 60})
    tooltip = plot.page.locator(".bk-tooltip, [class*=tooltip]").filter(has_text="rank 1").first
    tooltip.wait_for()
    words = tooltip.inner_text().split()
    assert words[words.index("mean") + 1] == "–"
    assert words[words.index("0") + 1] == "2.000"
    assert "NaN" not in words
    book.run(2)
    assert book.page.script_errors == []
