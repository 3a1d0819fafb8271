"""Jupyter Notebook 7: the prompt, the stop button and the live board."""

from __future__ import annotations

import pytest
from test_board import chart, holds
from test_post_mortem import answer, await_box, shown
from test_stuck_cells import BUTTON, STUCK, await_text

OWN_ERROR = "(reading 'schema')"
"""Notebook 7.6 raises it as it opens a page, of any notebook."""
CELLS = [
    "%load_ext nbmn\n%mn_start 2",
    "%%mn\ndef share(total):\n    return total / (1 - comm.rank)\n\nkept = 10 + comm.rank\n"
    "share(kept)\ncomm.barrier()",
    "%mn_debug 1",
    STUCK,
    "%%mn\nimport time\nfor step in range(1, 121):\n    time.sleep(0.05)\n"
    "    nbmn.report(loss=1 / step + comm.rank, samples=4, total=120)",
    "%%mn -o got\nfloat(comm.allreduce(np.array([1.0]))[0]), kept",
    "print(got)",
]


def test_prompt_stop_button_and_board(notebook_7, page, keep_screenshot):
    book = notebook_7("notebook_7", CELLS)
    book.run(0)
    book.run(1)
    failed = book.error(1)
    assert "rank 1 raised ZeroDivisionError at cell [2] line 3" in failed

    book.start(2)
    answer(page, 2, "p total", "11 ipdb>")
    answer(page, 2, "up", "> <cell [2]>(6)<module>()")
    await_box(page, 2)
    book.scroll_to(2)
    keep_screenshot(page, "notebook_7_prompt")
    answer(page, 2, "q", "")
    book.wait(2)
    assert not book.error(2)
    assert "p total 11 ipdb> up >" in shown(page, 2)

    book.start(3)
    await_text(page, 3, "rank 1 runs at cell [4] line 3; rank 0 waits in barrier #")
    page.locator(BUTTON).first.click()
    book.wait(3, timeout=20)
    assert "stopped on ranks 0, 1" in book.error(3)
    book.scroll_to(3)
    keep_screenshot(page, "notebook_7_stopped")

    book.start(4)
    book.scroll_to(4)
    early = book.wait_for_boards(holds("loss", 2, 5))
    grown = holds("loss", 2, len(chart(early, "loss")["x"]) + 20)
    later = book.wait_for_boards(lambda boards: grown(boards) and holds("samples/s", 2, 4)(boards))
    assert book.is_running(4), "the curves came only after the cell had ended"
    keep_screenshot(page, "notebook_7_board")
    loss = chart(later, "loss")
    for rank in (0, 1):
        for x, y in list(zip(loss["x"], loss[f"r{rank}"], strict=True))[:20]:
            assert y == pytest.approx(1 / x + rank, rel=1e-5)
    book.wait(4)
    assert "iteration 120 of 120" in shown(page, 4)
    keep_screenshot(page, "notebook_7_done")

    book.run(5)
    book.run(6)
    assert "{0: (2.0, 10), 1: (2.0, 11)}" in shown(page, 6)
    assert [error for error in page.script_errors if OWN_ERROR not in error] == []
