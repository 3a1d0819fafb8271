"""Cells on ranks: which ranks, values, and how output looks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from notebook_kernel import ANSI, Notebook, Ran, wait_until

PNG = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJg"
    "gg=="
)


@pytest.mark.parametrize(
    ("choice", "ranks"), [("", [0, 1]), ("all", [0, 1]), ("0", [0]), ("1:", [1]), ("-1", [1])]
)
def test_chosen_ranks_run_the_cell(two: Notebook, choice: str, ranks: list[int]) -> None:
    two.check(f"%%mn {choice} -o got\ncomm.rank * 10")
    assert two.value("got") == {rank: 10 * rank for rank in ranks}


@pytest.mark.parametrize("choice", ["2", "0,7", "3:", "zero", "__import__('os')"])
def test_a_wrong_choice_runs_nowhere(two: Notebook, choice: str) -> None:
    two.check("%mn touched = False")
    ran = two.run(f"%%mn {choice}\ntouched = True")
    assert not ran.ok
    assert ran.error_name in ("ClusterError", "UsageError")
    two.check("%mn assert not touched")


def test_values_come_by_rank_and_an_unpicklable_one_is_named(two: Notebook) -> None:
    two.check("%%mn -o got\nclass Mine:\n    rank = comm.rank\nMine()")
    assert two.value("[got[0].rank, got[1].rank]") == [0, 1]
    two.check("%%mn -o nothing\nx = 1")
    assert two.value("nothing") == {0: None, 1: None}
    ran = two.run("%%mn 1 -o bad\nimport threading\nthreading.Lock()")
    assert not ran.ok
    assert "rank 1 raised TypeError" in ran.error
    assert "lock" in ran.error
    assert not two.value("'bad' in globals()")


def test_local_runs_here_too(two: Notebook) -> None:
    two.check("%%mn --local\nwhere = 'here and there'")
    assert two.value("where") == "here and there"
    two.check("%mn assert where == 'here and there'")
    ran = two.run("%%mn --local\ncomm_size = comm.size\nthere = 1")
    assert not ran.ok
    assert "failed in the notebook" in ran.error
    two.check("%mn assert there == 1")


def test_output_streams_while_the_cell_runs(two: Notebook, tmp_path: Path) -> None:
    seen = tmp_path / "seen"

    def answer(ran: Ran) -> None:
        if "first 0" in ran.text and "first 1" in ran.text:
            seen.touch()

    ran = two.run(
        f"""%%mn
import os, time
print("first", comm.rank)
limit = time.monotonic() + 30
while not os.path.exists({str(seen)!r}):
    assert time.monotonic() < limit, "nobody saw the first line while the cell ran"
    time.sleep(0.02)
comm.barrier()
print("last", comm.rank)
""",
        on_message=answer,
    )
    assert ran.ok, ran.error
    assert ran.text == "rank 0:\nfirst 0\nlast 0\nrank 1:\nfirst 1\nlast 1"
    assert len(ran.displays) == 1


def test_equal_output_is_shown_once(two: Notebook) -> None:
    assert two.check("%%mn\nprint('alike')\n'value'").text == "ranks 0, 1:\nalike\n'value'"
    ran = two.check("%mn comm.rank")
    assert ran.text == "rank 0:\n0\nrank 1:\n1"
    assert two.check("%mn None").displays == {}


def test_rich_output_once_where_equal_and_per_rank_where_not(two: Notebook) -> None:
    def images(ran: Ran) -> list[str]:
        return [data["image/png"] for data in ran.displays.values() if "image/png" in data]

    show = "import base64\nfrom IPython.display import Image, display\n"
    same = two.check(f"%%mn\n{show}display(Image(base64.b64decode({PNG!r})))")
    assert len(images(same)) == 1
    differ = two.check(
        f"%%mn\n{show}display(Image(base64.b64decode({PNG!r}) + bytes([comm.rank])))\nprint('t')"
    )
    assert len(images(differ)) == 2
    html = two.check("%%mn\nfrom IPython.display import HTML\nHTML(f'<b>{comm.rank}</b>')")
    shown = [data["text/html"] for data in html.displays.values()]
    assert "<b>0</b>" in shown
    assert "<b>1</b>" in shown


def test_displays_are_updated_and_output_is_cleared(two: Notebook) -> None:
    ran = two.check(
        """%%mn
from IPython.display import HTML, clear_output, display
print("old")
clear_output()
handle = display(HTML("<i>one</i>"), display_id=True)
handle.update(HTML("<i>two</i>"))
print("new")
"""
    )
    shown = [data.get("text/html", "") for data in ran.displays.values()]
    assert "<i>two</i>" in shown
    assert not any("<i>one</i>" in html for html in shown)
    assert "old" not in ran.text
    assert "ranks 0, 1:\nnew" in ran.text


def test_stderr_prints_without_newline_and_unicode(two: Notebook) -> None:
    ran = two.check(
        """%%mn 0
import sys
print("a", end="")
print("b", end="")
print("Ω ≤ 🦆 'quoted' & <tag> $name", file=sys.stderr)
"""
    )
    assert ran.text == "rank 0:\nab\nΩ ≤ 🦆 'quoted' & <tag> $name"
    (data,) = ran.displays.values()
    assert "nbmn-stderr" in data["text/html"]
    assert "&lt;tag&gt; $name" in data["text/html"]


def test_long_output_is_whole(two: Notebook) -> None:
    ran = two.check("%%mn\nfor i in range(100_000):\n    print(f'{i:049d}')")
    lines = ran.text.splitlines()
    assert lines[0] == "ranks 0, 1:"
    assert lines[1:] == [f"{i:049d}" for i in range(100_000)]


def test_one_long_line_is_whole(two: Notebook) -> None:
    ran = two.check("%%mn 1\nprint('x' * 5_000_000 + '\\r', end='')\nprint('end', end='')")
    assert ran.text == "rank 1:\nend" + "x" * (5_000_000 - 3)


def test_progress_bars_show_their_last_state(two: Notebook) -> None:
    ran = two.check(
        """%%mn
for percent in range(0, 101, 5):
    print(f"\\r{percent:3d}% done", end="", flush=True)
print()
print("\\x1b[32mgreen\\x1b[0m")
"""
    )
    assert ANSI.sub("", ran.text) == "ranks 0, 1:\n100% done\ngreen"
    (data,) = ran.displays.values()
    assert re.search(r"<span [^>]*>green</span>", data["text/html"])


def test_top_level_await(two: Notebook) -> None:
    two.check("%%mn -o got\nimport asyncio\nawait asyncio.sleep(0.01)\ncomm.rank")
    assert two.value("got") == {0: 0, 1: 1}


def test_names_the_user_takes_do_not_matter(two: Notebook) -> None:
    two.check("%%mn\nkeep = comm, nbmn, chainer, np, get_ipython")
    two.check("%%mn\ncomm = nbmn = chainer = np = None\nprint = list = dict = get_ipython = _ = 3")
    two.check("%%mn\ndel print, list, dict, _\ncomm, nbmn, chainer, np, get_ipython = keep")
    two.check("%%mn -o got\ncomm.size")
    assert two.value("got") == {0: 2, 1: 2}
    two.check("model = 7\n%mn_push model\n%mn_pull model 1")


def test_input_is_refused(two: Notebook) -> None:
    ran = two.run("%%mn\ndef ask():\n    return input('who? ')\nask()", seconds=20)
    assert not ran.ok
    assert "ranks 0, 1 raised NoKeyboardError at cell" in ran.error
    assert (
        "a rank has no keyboard: ask in a cell of the notebook and %mn_push the answer" in ran.error
    )
    assert "----> 3     return input('who? ')" in ran.error
    assert "nbmn/" not in ran.error
    assert two.check("%mn exit").text == "ranks 0, 1:\n%mn_stop ends the ranks"


def test_status_tells_what_ranks_do(two: Notebook, tmp_path: Path) -> None:
    go = tmp_path / "go"
    two.check(
        f"""%%mn --bg -o run
import os, time
if comm.rank == 0:
    while not os.path.exists({str(go)!r}): time.sleep(0.02)
comm.barrier()
"""
    )
    at_once = two.check("%mn_status").text
    assert "idle" not in at_once
    label = two.value("run.request.label")
    waits, runs = f"waits in barrier at cell {label} line 5 for", f"runs cell {label} for"
    shown: list[str] = []

    def both_tell() -> bool:
        shown[:] = [two.check("%mn_status").text]
        return waits in shown[0] and runs in shown[0]

    wait_until(both_tell, 10, "one rank is said to wait, the other to run")
    go.touch()
    two.check("run.wait()")
    assert two.check("%mn_status").text.count("idle") == 2
