"""The board's button that asks where the ranks are, in a real JupyterLab."""

from __future__ import annotations

import os
import signal

from test_stuck_cells import BUTTON, await_text

STUCK = """%%mn
def forward(step):
    while True: pass

for step in range(1, 4):
    nbmn.report(loss=1 / step, samples=4, total=10)
if comm.rank == 1:
    forward(step)
comm.barrier()"""
CELLS = [
    "%load_ext nbmn\n%mn_start 3",
    STUCK,
    "%%mn -o got\nfloat(comm.allreduce(np.array([1.0]))[0])",
    "print(got)",
]
PANE = ".nbmn-pane"


def groups(page):
    """What the pane shows: lines of frames by the title above them."""
    page.locator(f"{PANE} .nbmn-stack").first.wait_for()
    return page.evaluate(
        """() => Object.fromEntries(Array.from(document.querySelectorAll(".nbmn-pane .nbmn-stack"),
             (stack) => [stack.querySelector(".nbmn-title").textContent,
               Array.from(stack.querySelectorAll("tr"), (row) => row.innerText.split("\\t"))]))"""
    )


def test_where_is_answered_while_the_cell_hangs(notebook, page, keep_screenshot):
    book = notebook("where_button", CELLS)
    book.run(0)
    book.start(1)
    button = page.get_by_role("button", name="Where?")
    await_text(page, 1, "rank 1 runs at cell [2] line 3; ranks 0, 2 wait in barrier #")
    detail = page.locator(".nbmn-table td.nbmn-rest").first
    detail.get_by_text("in barrier at cell [2] line 9").wait_for()
    assert detail.evaluate("(cell) => cell.scrollWidth <= cell.clientWidth"), "it is cut off"
    button.click()
    shown = groups(page)
    assert book.is_running(1)
    waiting, computing = shown
    assert waiting.startswith("ranks 0, 2: in barrier #")
    assert "(cell [2] line 9) for " in waiting
    assert shown[waiting] == [["cell [2] line 9", "<module>", "comm.barrier()"]]
    assert computing.startswith("rank 1: in the cell for ")
    assert shown[computing] == [
        ["cell [2] line 8", "<module>", "forward(step)"],
        ["cell [2] line 3", "forward", "while True: pass"],
    ]
    assert "Where the ranks were at" in page.locator(PANE).inner_text()
    assert button.get_attribute("aria-expanded") == "true"
    assert page.locator(f'{PANE} [aria-live="polite"]').count() == 2
    for theme in ("Light", "Dark"):
        book.set_theme(f"JupyterLab {theme}")
        page.locator(".nbmn-board").evaluate("(board) => board.scrollIntoView()")
        page.wait_for_function(f'document.body.dataset.nbmnTheme === "{theme.lower()}"')
        keep_screenshot(page, f"where_button_{theme.lower()}")

    # By keys alone: away, and back.
    page.get_by_role("button", name="Hide").focus()
    page.keyboard.press("Enter")
    page.locator(PANE).wait_for(state="hidden")
    assert button.evaluate("(button) => button === document.activeElement")
    assert button.get_attribute("aria-expanded") == "false"
    page.keyboard.press("Space")
    assert list(groups(page).values()) == list(shown.values())
    page.keyboard.press("Escape")
    page.locator(PANE).wait_for(state="hidden")

    # From a frame to its line in the cell.
    button.click()
    page.get_by_role("button", name="cell [2] line 3").click()
    line = page.locator(".jp-Notebook .jp-Cell >> nth=1 >> .cm-line >> nth=2")
    assert line.evaluate("(line) => line.getAnimations().length") == 1

    # A page that is loaded anew asks as well.
    book.save()
    book.reload()
    button.click()
    assert list(groups(page).values()) == list(shown.values())
    page.locator(BUTTON).first.click()
    button.wait_for(state="hidden")  # a run that is over has no ranks to ask
    book.run(2)
    book.run(3)
    await_text(page, 3, "{0: 3.0, 1: 3.0, 2: 3.0}")
    assert page.script_errors == []


_MADE_UP = """
import os, time
from nbmn.dashboard import LiveBoard
from nbmn.records import Step

def ask():
    if not os.path.exists("ask_again"):
        raise RuntimeError("<b>no</b> ranks")
    return "<div class='nbmn-where'>all at home</div>"

board = LiveBoard(size=1, run="run", where=ask)
board.show()
board.feed([Step(0, "run", time.time(), 1, {"loss": 1.0})])
os.getpid()
"""


def test_a_press_that_is_not_answered_says_so(lab, notebook, page):
    book = notebook("where_unheard", [_MADE_UP, "board.finish('done')"])
    book.run(0)
    button = page.get_by_role("button", name="Where?")
    button.click()
    page.locator(PANE).get_by_text("RuntimeError: <b>no</b> ranks").wait_for()
    (lab.root / "ask_again").touch()
    kernel = int("".join(book.outputs(0)[-1]["data"]["text/plain"]))
    os.kill(kernel, signal.SIGSTOP)
    try:
        button.click()
        page.locator(PANE).get_by_text("No answer yet.").wait_for(timeout=15_000)
    finally:
        os.kill(kernel, signal.SIGCONT)
    page.locator(PANE).get_by_text("all at home").wait_for()
    book.run(1)
    assert page.script_errors == []
