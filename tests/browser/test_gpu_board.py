"""GPUs on a board in a real page: a column that is there when a rank has one, in both themes."""

from __future__ import annotations

import pytest

pytest.importorskip("playwright.sync_api")

_FEED = """
import threading, time
from nbmn.dashboard import LiveBoard
from nbmn.records import GpuSample, RunStarted, Step

GIB = 1 << 30

def feed(board, size, ended):
    # From a thread, as the listener does it.
    board.feed([RunStarted(rank, "run", time.time(), "resnet-50", 4000) for rank in range(size)])
    i = 0
    while not ended.wait(0.05):
        i += 1
        now = time.time()
        board.feed([
            Step(r, "run", now, i, {"loss": 2 / i + 0.1 * r, "accuracy": 1 - 1 / (i + r)}, 32)
            for r in range(size)
        ])
        if i % 10 == 5:
            board.feed([
                GpuSample(r, "run", now, (70 + r) * GIB, int(79.6 * GIB), 96 - r, 60 + r,
                          "NVLink ×18", "heat" if r == 2 else "")
                for r in range(size - 1)
            ])
            board.feed([GpuSample(size - 1, "run", now, problem="GPU is lost")])

def train(size):
    global board, ended
    board, ended = LiveBoard(size=size, run="run"), threading.Event()
    board.show()
    threading.Thread(target=feed, args=(board, size, ended)).start()
"""
_FINISH = "ended.set(); board.finish('done')"
_CELLS = '[...document.querySelectorAll(".nbmn-gpu")].map((cell) => cell.textContent)'


def test_a_column_for_gpus(notebook, keep_screenshot):
    book = notebook("board_gpu", [_FEED, "train(4)", _FINISH])
    book.run(0)
    book.run(1)
    book.page.wait_for_function(f"{_CELLS}.length === 4 && {_CELLS}[3] === 'GPU is lost'")
    assert book.page.evaluate(_CELLS)[1] == "71.0/79.6 GiB · 95 % · 61 °C · NVLink ×18"
    message = book.page.inner_text(".nbmn-message")
    assert message == "rank 2: the GPU slows down, it is too hot (62 °C)"
    rows = '[...document.querySelectorAll(".nbmn-table tr:not(.nbmn-below)")]'
    columns = f"{rows}.map((row) => row.children.length)"
    assert len(set(book.page.evaluate(columns))) == 1
    book.scroll_to(1)
    keep_screenshot(book.page, "board_gpu_light")
    book.set_theme("JupyterLab Dark")
    keep_screenshot(book.page, "board_gpu_dark")
    book.run(2)
    book.page.wait_for_selector("text=peak 72.0/79.6 GiB · 94 % on average · NVLink ×18")
    book.scroll_to(1)
    keep_screenshot(book.page, "board_gpu_over_dark")
    book.set_theme("JupyterLab Light")
    keep_screenshot(book.page, "board_gpu_over_light")
    assert book.page.script_errors == []


def test_gpus_of_a_crowd_are_told_when_pointed_at(notebook):
    book = notebook("board_gpu_crowd", [_FEED, "train(12)", _FINISH])
    book.run(0)
    book.run(1)
    tile = book.page.locator(".nbmn-tile").nth(3)
    book.page.wait_for_function('document.querySelectorAll(".nbmn-tile")[3]?.title.includes("GPU")')
    tile.hover()
    about = book.page.locator(".nbmn-about", has_text="GPU 73.0/79.6 GiB · 93 % · 63 °C")
    about.wait_for()
    book.run(2)
    assert book.page.script_errors == []
