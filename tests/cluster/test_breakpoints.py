"""A debugger's prompt on one rank in the middle of a cell; the other ranks keep their state."""

from __future__ import annotations

import os
import re
import signal

import pytest
from notebook_kernel import Notebook, Ran, printed, wait_until, works
from prompts import stop_at_prompt, typing

STEPS = """%%mn --debug 1
total = 1
breakpoint()
total += 1
print('total is', total)
summed = comm.allreduce(np.array([float(total)]))
"""


def test_breakpoint_opens_the_prompt_of_that_rank_and_the_cell_goes_on(two: Notebook) -> None:
    label = two.next_cell()
    ran = two.run(STEPS, typed=typing("p comm.rank, total", "n", "n", "n", "total = 40", "c"))
    assert ran.ok, ran.error
    text = printed(ran)
    assert f"rank 1 stands at {label} line 3" in text
    assert "(1, 1)" in text
    assert re.search(
        r"-> 4 total \+= 1(.|\n)*-> 5 print(.|\n)*total is 2\n(.|\n)*-> 6 summed", text
    )
    assert "None" not in text
    two.check("%mn assert float(summed[0]) == 42")  # 2 of rank 0, and 40
    two.check("%mn assert '__return__' not in globals() and __import__('sys').gettrace() is None")
    two.check("%mn print('to its own cell again')")
    works(two)


@pytest.mark.parametrize(
    "call",
    [
        "import pdb; pdb.set_trace()",
        "from IPython.core.debugger import set_trace; set_trace()",
        "if comm.rank == 1: answer = input('? ')",
    ],
)
def test_other_ways_to_the_prompt(two: Notebook, call: str) -> None:
    asked: list[str] = []
    ran = two.run(
        f"%%mn --debug 1\n{call}\nafter = comm.allreduce_obj(1)", typed=typing("c", asked=asked)
    )
    assert ran.ok, ran.error
    assert asked == ["? " if "input" in call else "ipdb> "]
    works(two)


def test_ipdb_itself(two: Notebook) -> None:
    pytest.importorskip("ipdb")
    ran = two.run("%%mn --debug 1\nimport ipdb; ipdb.set_trace()\nx = 1", typed=typing("n", "c"))
    assert ran.ok, ran.error
    assert "-> 3 x = 1" in printed(ran)


def test_breakpoints_in_functions_loops_and_awaits(two: Notebook) -> None:
    ran = two.run(
        "%%mn --debug 0\nimport asyncio\nasync def later(n):\n    breakpoint()\n    return n + 1\n"
        "values = []\nfor i in range(3):\n    values.append(await later(i))\nlast = 1",
        typed=typing("b 5", "c", "p n", "c", "cl 1", "n = 10", "c", "c", "c"),
    )
    assert "Breakpoint 1 at" in printed(ran)
    two.check("%mn assert values[0] == 1 and last == 1")
    works(two)


def test_stepping_ends_with_the_cell(two: Notebook) -> None:
    ran = two.run("%%mn --debug 0\nbreakpoint()\nx = 1\nx", typed=typing("s", "s", "s", "s"))
    assert ran.ok, ran.error
    assert "-> 4 x" in printed(ran)
    assert "/" not in printed(ran).replace("rank 0", "")  # no file of anybody else's
    works(two)


THREADS = """%%mn --debug 1
import threading
class Slow:
    def __len__(self):
        return 8
    def __getitem__(self, i):
        if i < 2:
            breakpoint()
            i = i + 0
        return np.float32(i)
batches = chainer.iterators.MultithreadIterator(Slow(), 4, repeat=False, shuffle=False, n_threads=2)
total = sum(float(sum(batch)) for batch in batches)
total = comm.allreduce_obj(total)
"""


def test_threads_take_turns_at_the_prompt(two: Notebook) -> None:
    ran = two.run(THREADS, typed=typing("p 'at', i", "n", "p 'at', i", "c", "c", "c"), seconds=30)
    assert ran.ok, ran.error
    # One asks after the other, each of its own example, and it is said who asks.
    assert set(re.findall(r"\('at', \d\)", printed(ran))) <= {"('at', 0)", "('at', 1)"}
    assert re.search(r"^--- .*Thread.* ---$", printed(ran), re.MULTILINE)
    two.check("%mn assert total == 56, total")
    works(two)


def test_q_fails_the_cell_and_frees_who_waits(two: Notebook) -> None:
    label = two.next_cell()
    ran = two.run("%%mn --debug 1\nx = 1\nbreakpoint()\ncomm.barrier()", typed=typing("q"))
    assert f"rank 1 raised BdbQuit at {label} line 3: the debugger was left" in ran.error
    assert "rank 0 waited in barrier" in ran.error
    assert len(ran.error.splitlines()) == 2
    works(two)


def test_others_wait_for_the_prompt_without_an_alarm(two: Notebook) -> None:
    """They are not freed, and it is said where the rank is for which they wait."""
    label = two.next_cell()
    seen: list[str] = []

    def typed(prompt: str, ran: Ran) -> str:
        wait_until(lambda: "debugger" in _live(two, ran, seen), 15, "who waits for whom")
        return "c"

    ran = two.run("%%mn --debug 1\nbreakpoint()\ncomm.barrier()", typed=typed)
    assert ran.ok, ran.error
    assert "rank 0" in seen[-1]
    assert f"{label} line 2" in seen[-1]
    works(two)


def _live(two: Notebook, ran: Ran, seen: list[str]) -> str:
    """What the page shows at this moment, below a cell that asks."""
    while True:
        try:
            message = two.client.get_iopub_msg(timeout=0.05)
        except Exception:  # noqa: BLE001 - queue.Empty: nothing more
            seen.append(" ".join(data.get("text/plain", "") for data in ran.displays.values()))
            return seen[-1]
        ran.take(message)


def test_the_stop_button_at_a_breakpoint_stops_all_ranks(two: Notebook) -> None:
    ran, asked = stop_at_prompt(two, "%%mn --debug 1\nbreakpoint()\ncomm.barrier()")
    assert ran.error_name == "RanksInterrupted"
    assert asked == ["ipdb> "]
    works(two)
    # After c it stops as any cell does, and opens no prompt.
    asked.clear()
    answers = typing("c", asked=asked)
    ran = two.run(
        "%%mn --debug 1\nbreakpoint()\nwhile True: pass",
        interrupt_when=lambda: bool(asked),
        typed=answers,
        seconds=20,
    )
    assert ran.error_name == "RanksInterrupted"
    works(two)


def test_what_a_debugged_rank_prints_is_all_there(two: Notebook) -> None:
    ran = two.run("%%mn 0 --debug 0\nfor i in range(30_000): print(i)\nprint('end', end='')")
    assert ran.ok, ran.error
    assert printed(ran) == "".join(f"{i}\n" for i in range(30_000)) + "end"


def test_streams_that_are_kept_are_of_use_in_the_next_cell(two: Notebook) -> None:
    two.check("%%mn 0 --debug 0\nimport sys\nheld = sys.stdout")
    assert "said later" in two.check("%%mn 0\nprint('said later', file=held)").text


def test_breakpoint_without_debug_says_what_to_do(two: Notebook) -> None:
    label = two.next_cell()
    ran = two.run("%%mn\nif comm.rank == 1: breakpoint()")
    assert f"rank 1 raised BreakpointError at {label} line 2: breakpoint() on a rank" in ran.error
    assert "%%mn --debug RANK" in ran.error
    assert len(ran.error.splitlines()) == 1
    ran = two.run("%%mn 1\nimport pdb; pdb.set_trace()")
    assert "%%mn --debug RANK" in ran.error
    works(two)


def test_options_that_do_not_go_together(two: Notebook) -> None:
    assert "leave out --bg" in two.run("%%mn --debug 1 --bg\n1").error
    assert "leave out --local" in two.run("%%mn --debug 1 --local\n1").error
    assert "this cell runs on rank 0" in two.run("%%mn 0 --debug 1\n1").error
    assert "no rank 7" in two.run("%%mn --debug 7\n1").error


def test_a_rank_that_dies_at_the_prompt_ends_the_cell(fresh: Notebook) -> None:
    fresh.check("%mn_start 1")
    assert fresh.run("%mn_debug 0", typed=typing()).text == (
        "rank 0 has raised no exception that could be looked at"
    )
    pid = int(fresh.check("%mn print(__import__('os').getpid())").text.split()[-1])
    ran = fresh.run(
        "%%mn --debug 0\nbreakpoint()",
        typed=lambda prompt, ran: os.kill(pid, signal.SIGKILL),
        seconds=20,
    )
    assert ran.error_name == "ClusterError"
    assert "rank 0" in ran.error
