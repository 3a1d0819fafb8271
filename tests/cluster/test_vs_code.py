"""VS Code, as its Jupyter extension talks to a kernel: an input box, no page of a Jupyter server.

The extension itself needs a window; what it sends is known from its sources.
"""

from __future__ import annotations

import gzip
import re
import time
from collections.abc import Callable, Iterator

import pytest
from notebook_kernel import Notebook, Ran, printed, works
from prompts import stop_at_prompt

# What the extension runs first, in effect.
PREAMBLE = """
import builtins, sys
plain_input = builtins.input
def input_after_flush(*args):
    sys.stdout.flush()
    return plain_input(*args)
builtins.input = input_after_flush
"""
CLOSES_BY_ITSELF = ""
"""What comes from a box that nobody has seen; Escape comes later, as does Enter alone."""
ESCAPE = "Escape"


@pytest.fixture
def code(two: Notebook) -> Iterator[Notebook]:
    """The notebook, opened in VS Code."""
    two.client.session.metadata = {"cellId": "vscode-notebook-cell:/home/me/a.ipynb#W0sZmlsZQ"}
    two.check(PREAMBLE)
    yield two
    two.check("builtins.input = plain_input")
    two.client.session.metadata = {}


@pytest.fixture
def interrupted_by_message(code: Notebook) -> Iterator[Notebook]:
    """As where the kernel runs on another host."""
    spec = code.manager.kernel_spec
    spec.interrupt_mode = "message"
    yield code
    spec.interrupt_mode = "signal"


def box(*answers: str) -> Callable[[str, Ran], str]:
    """The input box, with somebody who types these."""
    left = list(answers)

    def typed(prompt: str, ran: Ran) -> str:
        answer = left.pop(0) if left else pytest.fail(f"asked once more; so far:\n{ran.text}")
        if answer == ESCAPE:
            time.sleep(0.3)
        return "" if answer == ESCAPE else answer

    return typed


FAILS = "%%mn\ndef half(n):\n    return n / (1 - comm.rank)\nhalf(4 + comm.rank)"


def test_what_was_typed_can_be_read_below_the_cell(code: Notebook) -> None:
    assert not code.run(FAILS).ok
    ran = code.run("%mn_debug 1", typed=box("p n", "up", "q"))
    assert ran.ok, ran.error
    assert "ipdb> p n\n5\nipdb> up\n> <cell" in printed(ran)
    assert printed(ran).endswith("ipdb> q\n")
    works(code)


def test_escape_is_an_empty_line(code: Notebook) -> None:
    """Which repeats the last command, once each time."""
    code.run(FAILS)
    ran = code.run("%mn_debug 1", typed=box(ESCAPE, "p n", ESCAPE, ESCAPE, "q"))
    assert ran.ok, ran.error
    assert "ipdb> p n\n5\nipdb> \n5\nipdb> \n5\nipdb> q\n" in printed(ran)


def test_boxes_that_close_by_themselves_repeat_nothing(code: Notebook) -> None:
    ran = code.run(
        "%%mn --debug 1\nbreakpoint()\ncounted = 1\ncounted += 1\ncounted += 1\ncomm.barrier()",
        typed=box("n", CLOSES_BY_ITSELF, "p counted", "c"),
    )
    assert ran.ok, ran.error
    assert "name 'counted' is not defined" in printed(ran)  # n was one step
    works(code)


def test_a_box_that_never_stays_open_ends_the_debugger(code: Notebook) -> None:
    code.run(FAILS)
    ran = code.run("%mn_debug 1", typed=lambda prompt, ran: CLOSES_BY_ITSELF, seconds=30)
    assert ran.ok, ran.error
    assert printed(ran).count("reload the window of VS Code") == 1
    works(code)


def test_stop_button_at_the_box(interrupted_by_message: Notebook) -> None:
    code = interrupted_by_message
    ran, _ = stop_at_prompt(code, "%%mn --debug 1\nbreakpoint()\ncomm.barrier()")
    assert ran.error_name == "RanksInterrupted"
    # The box stays open; what is typed into it now is nobody's answer.
    code.client.input("kept = 7")
    works(code)
    ran = code.run("%%mn --debug 1\nbreakpoint()\ncomm.barrier()", typed=box("p kept", "c"))
    assert "ipdb> p kept\n1\n" in printed(ran)


def test_stop_button_in_a_stuck_collective(interrupted_by_message: Notebook) -> None:
    code = interrupted_by_message
    seen: list[str] = []
    ran = code.run(
        "%%mn\nif comm.rank == 0: comm.barrier()\nwhile comm.rank: pass",
        on_message=lambda ran: seen.append(ran.text),
        interrupt_when=lambda: any("rank 0 waits in barrier" in text for text in seen),
        typed=box(),
        seconds=30,
    )
    assert ran.error_name == "RanksInterrupted"
    assert "rank 1:\nstopped at cell [" in ran.text
    works(code)


def test_its_own_requests_between_cells_do_not_count(code: Notebook) -> None:
    label = code.next_cell()
    code.client.execute_interactive("dir()", silent=True, store_history=False)
    assert f"rank 1 raised ZeroDivisionError at {label} line 3" in code.run(FAILS).error


def test_a_board_needs_no_server(code: Notebook) -> None:
    """All that a page needs comes from the kernel; what it leaves needs no kernel."""
    code.check("from nbmn.dashboard.widget import bokeh_runtime; bokeh_runtime.cache_clear()")
    live: list[set[str]] = []

    def look(ran: Ran) -> None:
        live.extend(set(data) for data in ran.displays.values())

    ran = code.run("%%mn\nfor i in range(20): nbmn.report(loss=0.25)", on_message=look)
    assert ran.ok, ran.error
    widget = "application/vnd.jupyter.widget-view+json"
    assert {"text/plain", "text/html", widget} in live
    (left,) = ran.displays.values()
    assert set(left) == {"text/plain", "text/html"}
    (runtime,) = [state for state in ran.widgets if "source" in state]
    assert b"Bokeh" in gzip.decompress(runtime["source"])
    scripts = [state["_esm"] for state in ran.widgets if "_esm" in state]
    assert len(scripts) == 2
    url = r"https?://(?!www\.w3\.org)"  # but of SVG's names
    for script in scripts:
        assert not re.search(rf"{url}|\bfetch\(|\bimport\s*[{{*\"']|requirejs", script)
        # What is imported is a text that the page holds.
        assert set(re.findall(r"\bimport\((.*?)\)", script)) <= {"/* webpackIgnore: true */ url"}
