"""Cells that do not go on, in a real JupyterLab: what it shows, and the stop button."""

from __future__ import annotations

STUCK = """%%mn
if comm.rank == 1:
    while True: pass
comm.barrier()"""
CELLS = [
    "%load_ext nbmn\n%mn_start 2",
    "%mn kept = 10 + comm.rank",
    STUCK,
    "%%mn\nif comm.rank == 1: raise ValueError('boom')\ncomm.barrier()",
    "%%mn -o got\nfloat(comm.allreduce(np.array([1.0]))[0]), kept",
    "print(got)",
    STUCK.replace("%%mn", "%%mn --bg -o run"),
    "%mn_where",
    "%mn_interrupt",
]
BUTTON = '[data-command="notebook:interrupt-kernel"], jp-button[title^="Interrupt"]'


def await_text(page, index, text):
    """Wait for text under a cell."""
    page.wait_for_function(
        """([index, text]) => document.querySelectorAll(".jp-Notebook .jp-Cell")[index]
             .querySelector(".jp-OutputArea")?.innerText.includes(text)""",
        arg=[index, text],
        timeout=20_000,
    )


def shown(page, index):
    return page.locator(f".jp-Notebook .jp-Cell >> nth={index} >> .jp-OutputArea").inner_text()


def check_that_all_goes_on(book, page):
    book.run(4)
    book.run(5)
    assert "{0: (2.0, 10), 1: (2.0, 11)}" in shown(page, 5)


def test_stop_button_where_and_failures(notebook, page, keep_screenshot):
    book = notebook("stuck", CELLS)
    book.run(0)
    book.run(1)

    book.start(2)
    await_text(page, 2, "rank 1 runs at cell [3] line 3; rank 0 waits in barrier #")
    keep_screenshot(page, "slow")
    page.locator(BUTTON).first.click()
    book.wait(2, timeout=20)
    assert "stopped on ranks 0, 1" in book.error(2)
    assert "stopped at cell [3] line 3" in shown(page, 2)
    assert "waits in" not in shown(page, 2)
    check_that_all_goes_on(book, page)

    book.run(3, timeout=20)
    assert "rank 1 raised ValueError at cell [" in book.error(3)
    assert "rank 0 waited in barrier #" in book.error(3)
    keep_screenshot(page, "raised")
    check_that_all_goes_on(book, page)

    book.run(6)
    await_text(page, 6, "rank 0 waits in barrier #")
    book.run(7)
    assert "rank 0: in barrier #" in shown(page, 7)
    assert "rank 1: in the cell for" in shown(page, 7)
    book.scroll_to(6)
    keep_screenshot(page, "where")
    book.run(8)
    assert "interrupted ranks 0, 1" in shown(page, 8)
    check_that_all_goes_on(book, page)
    assert page.script_errors == []
