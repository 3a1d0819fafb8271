"""A debugger's prompt on a rank, typed in a real JupyterLab."""

from __future__ import annotations

CELLS = [
    "%load_ext nbmn\n%mn_start 2",
    "%%mn\ndef share(total):\n    return total / (1 - comm.rank)\n\nkept = 10 + comm.rank\n"
    "share(kept)\ncomm.barrier()",
    "%mn_debug 1",
    "%%mn -o got\nfloat(comm.allreduce(np.array([1.0]))[0]), kept",
    "print(got)",
    "%%mn --debug 0\nbreakpoint()\nkept += 1\nsummed = comm.allreduce_obj(kept)\nprint(summed)",
    "%mn_debug 1",
]
BOX = ".jp-Stdin-input:not([data-used])"


def cell(page, index):
    return page.locator(f".jp-Notebook .jp-Cell >> nth={index}")


def await_box(page, index):
    """Where to type below a cell."""
    return cell(page, index).locator(BOX).element_handle(timeout=30_000)


def answer(page, index, line, expect):
    """Type a line at the prompt below a cell, once there is one; then wait for text there."""
    box = await_box(page, index)
    box.fill(line)
    box.evaluate("(box) => { box.dataset.used = true; }")  # it goes only after the next has come
    box.press("Enter")
    page.wait_for_function(
        """([index, text]) => document.querySelectorAll(".jp-Notebook .jp-Cell")[index]
             .querySelector(".jp-OutputArea").innerText.replace(/\\s+/g, " ").includes(text)""",
        arg=[index, f"{line} {expect}"],
        timeout=30_000,
    )


def shown(page, index):
    """The text under a cell, as a person reads it; all white space is one blank."""
    return " ".join(cell(page, index).locator(".jp-OutputArea").inner_text().split())


def test_post_mortem_and_breakpoints(notebook, page, keep_screenshot):
    book = notebook("post_mortem", CELLS)
    book.run(0)
    book.run(1)
    assert "rank 1 raised ZeroDivisionError at cell [2] line 3" in book.error(1)

    book.start(2)
    answer(page, 2, "p total", "11 ipdb>")
    answer(page, 2, "up", "> <cell [2]>(6)<module>()")
    answer(page, 2, "interact", "interactive; exit() leads back")
    answer(page, 2, "kept * 2", "22")
    answer(page, 2, "exit()", "ipdb>")
    answer(page, 2, "w", "> <cell [2]>(6)")
    await_box(page, 2)
    book.scroll_to(2)
    keep_screenshot(page, "post-mortem-light")
    book.set_theme("JupyterLab Dark")
    page.locator("#jupyterlab-splash").wait_for(state="detached")
    keep_screenshot(page, "post-mortem-dark")
    book.set_theme("JupyterLab Light")
    answer(page, 2, "q", "")
    book.wait(2)
    assert not book.error(2)
    # What was typed and what came back, in order.
    text = shown(page, 2)
    order = [
        "rank 1 raised ZeroDivisionError",
        "p total 11",
        "ipdb> up",
        "----> 6 share(kept)",
        "22",
        "ipdb> q",
    ]
    places = [text.find(word) for word in order]
    assert -1 not in places, text
    assert places == sorted(places), text

    book.run(3)
    book.run(4)
    assert "{0: (2.0, 10), 1: (2.0, 11)}" in shown(page, 4)

    book.start(5)
    answer(page, 5, "p kept", "10")
    answer(page, 5, "kept = 100", "ipdb>")
    keep_screenshot(page, "breakpoint")
    answer(page, 5, "c", "")
    book.wait(5)
    assert not book.error(5)
    assert "113" in shown(page, 5)  # 101 of rank 0, which was told, and 12

    # The stop button at the prompt ends the debugger; kernel and ranks go on.
    book.start(6)
    await_box(page, 6)
    page.locator(
        '[data-command="notebook:interrupt-kernel"], jp-button[title^="Interrupt"]'
    ).first.click()
    book.wait(6, timeout=20)
    assert "stopped on rank 1" in book.error(6)
    book.run(3)
    assert not book.error(3)
    assert page.script_errors == []
