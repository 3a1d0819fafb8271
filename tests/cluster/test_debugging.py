"""A debugger's prompt on one rank, typed in the notebook; the other ranks keep their state."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from notebook_kernel import ANSI, Notebook, Ran, wait_until

Typed = Callable[[str, Ran], "str | None"]
END_OF_INPUT = "\x04"


@pytest.fixture(autouse=True)
def _a_variable_that_must_survive(two: Notebook) -> None:
    two.check("%mn kept = comm.rank")


def _works(two: Notebook) -> None:
    two.check("%%mn -o got\nfloat(comm.allreduce(np.array([1.0]))[0]), kept")
    assert two.value("got") == {0: (2.0, 0), 1: (2.0, 1)}


def typing(*lines: str, asked: list[str] | None = None) -> Typed:
    """A person who types these lines; what is asked after them is a failure."""
    left = list(lines)

    def typed(prompt: str, ran: Ran) -> str:
        if asked is not None:
            asked.append(prompt)
        # Else the test would wait for an answer for ever.
        return left.pop(0) if left else pytest.fail(f"asked once more; so far:\n{ran.text}")

    return typed


def _plain(ran: Ran) -> str:
    return ANSI.sub("", ran.streams["stdout"])


FAILS = """%%mn
def half(n):
    doubled = n * 2
    return doubled / (1 - comm.rank)
start = 3 + comm.rank
half(start)"""


def test_post_mortem(two: Notebook) -> None:
    label = two.next_cell()
    assert not two.run(FAILS).ok
    asked: list[str] = []
    ran = two.run(
        "%mn_debug 1",
        typed=typing(
            *("p doubled", "up", "p start", "p doubled", "down", "w", "pp {'a': n}", "q"),
            asked=asked,
        ),
    )
    assert ran.ok, ran.error
    assert asked == ["ipdb> "] * 8
    text = _plain(ran)
    assert f"rank 1 raised ZeroDivisionError at {label} line 4" in text
    assert "----> 4     return doubled / (1 - comm.rank)" in text
    assert "\n8\n" in text
    assert "----> 6 half(start)" in text
    assert "\n4\n" in text
    assert "*** NameError: name 'doubled' is not defined" in text
    assert "{'a': 4}" in text
    # The stack is the user's: no line of IPython, nbmn or ipyparallel.
    assert len(re.findall(r"^[> ] [^ ].*\(\d+\)", text, re.MULTILINE)) == 5  # w shows two
    assert "/site-packages/" not in text
    _works(two)


def test_post_mortem_can_be_looked_at_again_and_changes_nothing(two: Notebook) -> None:
    two.run(FAILS)
    for _ in range(2):
        ran = two.run(
            "%mn_debug 1",
            typed=typing("interact", "1 / 0", "only_here = 5", "exit()", "1 / 0", "q"),
        )
        assert "rank 1 raised ZeroDivisionError at cell" in _plain(ran)
        assert "line 4; q leaves" in _plain(ran)
    two.check("%%mn 1\nassert 'only_here' not in globals()")


def test_interact_has_the_frame_s_names(two: Notebook) -> None:
    two.run(FAILS)
    ran = two.run(
        "%mn_debug 1",
        typed=typing(
            *("interact", "[doubled, n,", "comm.rank]", "1 / 0", "for i in range(2):"),
            *("    print('i is', i)", "", "exit()", "p n", "interact", END_OF_INPUT, "q"),
        ),
    )
    assert ran.ok, ran.error
    assert "[8, 4, 1]" in _plain(ran)
    assert "ZeroDivisionError: division by zero" in _plain(ran)
    assert "i is 0\ni is 1\n" in _plain(ran)
    _works(two)


def test_names_are_completed(two: Notebook) -> None:
    two.run(FAILS)
    ran = two.run(
        "%mn_debug 1",
        typed=typing("complete doub", "p kep\t", "complete nothing.x", "np.array_s\t", "q"),
    )
    assert ran.ok, ran.error
    text = _plain(ran)
    assert "NameError: name 'nothing' is not defined" in text
    assert "doubled" in text.split()
    assert "kept" in text.split()
    assert "np.array_split" in text.split()
    assert "array_equal" not in text


def test_post_mortem_of_a_rank_that_waited(two: Notebook) -> None:
    label = two.next_cell()
    two.run("%%mn\nif comm.rank == 0: raise OSError\ncomm.barrier()")
    ran = two.run("%mn_debug 1", typed=typing("p comm.rank", END_OF_INPUT))
    assert ran.ok, ran.error
    assert f"rank 1 was interrupted at {label} line 3" in _plain(ran)
    assert "----> 3 comm.barrier()" in _plain(ran)
    _works(two)


def test_help_on_names_and_chained_exceptions(two: Notebook) -> None:
    two.run("%%mn 0\ntry:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise OSError from e")
    ran = two.run("%mn_debug 0", typed=typing("exceptions", "exceptions 0", "comm?", "h", "q"))
    assert "ZeroDivisionError('division by zero')" in _plain(ran)
    assert "----> 3     1 / 0" in _plain(ran)
    assert "Type:" in _plain(ran)
    assert "Documented commands" in _plain(ran)


def test_nothing_to_look_at(two: Notebook) -> None:
    two.run("%mn x = = 3")
    assert "rank 0 ran nothing: SyntaxError" in two.run("%mn_debug 0", typed=typing()).text
    assert "no rank 2" in two.run("%mn_debug 2").error
    assert "is no rank; name one" in two.run("%mn_debug 0,1").error
    assert "required: rank" in two.run("%mn_debug").streams["stderr"]


def test_a_rank_in_the_background_cannot_be_looked_at(two: Notebook, tmp_path: Path) -> None:
    go = tmp_path / "go"
    two.check(f"%%mn 1 --bg -o run\nimport os, time\nwhile not os.path.exists({str(go)!r}): pass")
    ran = two.run("%mn_debug 1")
    go.touch()
    two.check("run.wait()")
    assert "rank 1 still runs cell" in ran.error
    _works(two)


def test_the_stop_button_ends_the_debugger(two: Notebook) -> None:
    two.run(FAILS)
    asked: list[str] = []
    ran = two.run(
        "%mn_debug 1",
        interrupt_when=lambda: bool(asked),
        typed=lambda prompt, ran: asked.append(prompt),
        seconds=20,
    )
    assert ran.error_name == "RanksInterrupted"
    assert asked == ["ipdb> "]
    _works(two)
    # Also while it computes; there the communicators have to be renewed.
    began: list[bool] = []
    answers = typing("comm.barrier()")

    def typed(prompt: str, ran: Ran) -> str:
        began.append(True)
        return answers(prompt, ran)

    ran = two.run("%mn_debug 1", interrupt_when=lambda: bool(began), typed=typed, seconds=20)
    assert ran.error_name == "RanksInterrupted"
    _works(two)


def test_a_front_end_that_cannot_ask(two: Notebook) -> None:
    two.run(FAILS)
    assert "this front end cannot ask for input" in two.run("%mn_debug 1", seconds=20).error
    ran = two.run("%%mn --debug 1\nbreakpoint()\ncomm.barrier()", seconds=20)
    assert "this front end cannot ask for input" in ran.error
    _works(two)


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
    text = _plain(ran)
    assert f"rank 1 stands at {label} line 3" in text
    assert "(1, 1)" in text
    assert re.search(
        r"-> 4 total \+= 1(.|\n)*-> 5 print(.|\n)*total is 2\n(.|\n)*-> 6 summed", text
    )
    assert "None" not in text
    two.check("%mn assert float(summed[0]) == 42")  # 2 of rank 0, and 40
    two.check("%mn assert '__return__' not in globals() and __import__('sys').gettrace() is None")
    two.check("%mn print('to its own cell again')")
    _works(two)


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
    _works(two)


def test_ipdb_itself(two: Notebook) -> None:
    pytest.importorskip("ipdb")
    ran = two.run("%%mn --debug 1\nimport ipdb; ipdb.set_trace()\nx = 1", typed=typing("n", "c"))
    assert ran.ok, ran.error
    assert "-> 3 x = 1" in _plain(ran)


def test_breakpoints_in_functions_loops_and_awaits(two: Notebook) -> None:
    ran = two.run(
        "%%mn --debug 0\nimport asyncio\nasync def later(n):\n    breakpoint()\n    return n + 1\n"
        "values = []\nfor i in range(3):\n    values.append(await later(i))\nlast = 1",
        typed=typing("b 5", "c", "p n", "c", "cl 1", "n = 10", "c", "c", "c"),
    )
    assert "Breakpoint 1 at" in _plain(ran)
    two.check("%mn assert values[0] == 1 and last == 1")
    _works(two)


def test_stepping_ends_with_the_cell(two: Notebook) -> None:
    ran = two.run("%%mn --debug 0\nbreakpoint()\nx = 1\nx", typed=typing("s", "s", "s", "s"))
    assert ran.ok, ran.error
    assert "-> 4 x" in _plain(ran)
    assert "/" not in _plain(ran).replace("rank 0", "")  # no file of anybody else's
    _works(two)


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
    assert set(re.findall(r"\('at', \d\)", _plain(ran))) <= {"('at', 0)", "('at', 1)"}
    assert re.search(r"^--- .*Thread.* ---$", _plain(ran), re.MULTILINE)
    two.check("%mn assert total == 56, total")
    _works(two)


def test_leaving_the_debugger_by_what_would_end_a_program(two: Notebook) -> None:
    two.run(FAILS)
    for line in ("!quit()", "!import sys; sys.exit(3)"):
        ran = two.run("%mn_debug 1", typed=typing(line))
        assert ran.ok, ran.error
    ran = two.run("%mn_debug 1", typed=typing("run", "restart", "debug 1/0", "p doubled", "q"))
    assert ran.ok, ran.error
    assert _plain(ran).count("*** a rank has no program to begin anew") == 2
    assert "*** ZeroDivisionError: division by zero" in _plain(ran)
    assert "\n8\n" in _plain(ran)
    _works(two)


def test_q_fails_the_cell_and_frees_who_waits(two: Notebook) -> None:
    label = two.next_cell()
    ran = two.run("%%mn --debug 1\nx = 1\nbreakpoint()\ncomm.barrier()", typed=typing("q"))
    assert f"rank 1 raised BdbQuit at {label} line 3: the debugger was left" in ran.error
    assert "rank 0 waited in barrier" in ran.error
    assert len(ran.error.splitlines()) == 2
    _works(two)


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
    _works(two)


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
    asked: list[str] = []
    ran = two.run(
        "%%mn --debug 1\nbreakpoint()\ncomm.barrier()",
        interrupt_when=lambda: bool(asked),
        typed=lambda prompt, ran: asked.append(prompt),
        seconds=20,
    )
    assert ran.error_name == "RanksInterrupted"
    assert asked == ["ipdb> "]
    _works(two)
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
    _works(two)


def test_what_a_debugged_rank_prints_is_all_there(two: Notebook) -> None:
    ran = two.run("%%mn 0 --debug 0\nfor i in range(30_000): print(i)\nprint('end', end='')")
    assert ran.ok, ran.error
    assert _plain(ran) == "".join(f"{i}\n" for i in range(30_000)) + "end"


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
    _works(two)


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
