"""A debugger's prompt on a rank whose cell has failed, typed in the notebook."""

from __future__ import annotations

import re
from pathlib import Path

from notebook_kernel import Notebook, Ran, printed, works
from prompts import END_OF_INPUT, stop_at_prompt, typing

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
    text = printed(ran)
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
    works(two)


def test_post_mortem_can_be_looked_at_again_and_changes_nothing(two: Notebook) -> None:
    two.run(FAILS)
    for _ in range(2):
        ran = two.run(
            "%mn_debug 1",
            typed=typing("interact", "1 / 0", "only_here = 5", "exit()", "1 / 0", "q"),
        )
        assert "rank 1 raised ZeroDivisionError at cell" in printed(ran)
        assert "line 4; q leaves" in printed(ran)
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
    assert "[8, 4, 1]" in printed(ran)
    assert "ZeroDivisionError: division by zero" in printed(ran)
    assert "i is 0\ni is 1\n" in printed(ran)
    works(two)


def test_names_are_completed(two: Notebook) -> None:
    two.run(FAILS)
    ran = two.run(
        "%mn_debug 1",
        typed=typing("complete doub", "p kep\t", "complete nothing.x", "np.array_s\t", "q"),
    )
    assert ran.ok, ran.error
    text = printed(ran)
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
    assert f"rank 1 was interrupted at {label} line 3" in printed(ran)
    assert "----> 3 comm.barrier()" in printed(ran)
    works(two)


def test_help_on_names_and_chained_exceptions(two: Notebook) -> None:
    two.run("%%mn 0\ntry:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise OSError from e")
    ran = two.run("%mn_debug 0", typed=typing("exceptions", "exceptions 0", "comm?", "h", "q"))
    assert "ZeroDivisionError('division by zero')" in printed(ran)
    assert "----> 3     1 / 0" in printed(ran)
    assert "Type:" in printed(ran)
    assert "Documented commands" in printed(ran)


def test_nothing_to_look_at(two: Notebook) -> None:
    two.run("%mn x = = 3")
    assert "rank 0 ran nothing: SyntaxError" in two.run("%mn_debug 0", typed=typing()).text
    assert "no rank 2" in two.run("%mn_debug 2").error
    assert "is no rank; name one" in two.run("%mn_debug 0,1").error
    assert "required: RANK" in two.run("%mn_debug").streams["stderr"]


def test_a_rank_in_the_background_cannot_be_looked_at(two: Notebook, tmp_path: Path) -> None:
    go = tmp_path / "go"
    two.check(f"%%mn 1 --bg -o run\nimport os, time\nwhile not os.path.exists({str(go)!r}): pass")
    ran = two.run("%mn_debug 1")
    go.touch()
    two.check("run.wait()")
    assert "rank 1 still runs cell" in ran.error
    works(two)


def test_the_stop_button_ends_the_debugger(two: Notebook) -> None:
    two.run(FAILS)
    ran, asked = stop_at_prompt(two, "%mn_debug 1")
    assert ran.error_name == "RanksInterrupted"
    assert asked == ["ipdb> "]
    works(two)
    # Also while it computes; there the communicators have to be renewed.
    began: list[bool] = []
    answers = typing("comm.barrier()")

    def typed(prompt: str, ran: Ran) -> str:
        began.append(True)
        return answers(prompt, ran)

    ran = two.run("%mn_debug 1", interrupt_when=lambda: bool(began), typed=typed, seconds=20)
    assert ran.error_name == "RanksInterrupted"
    works(two)


def test_a_front_end_that_cannot_ask(two: Notebook) -> None:
    two.run(FAILS)
    assert "this front end cannot ask for input" in two.run("%mn_debug 1", seconds=20).error
    ran = two.run("%%mn --debug 1\nbreakpoint()\ncomm.barrier()", seconds=20)
    assert "this front end cannot ask for input" in ran.error
    works(two)


def test_leaving_the_debugger_by_what_would_end_a_program(two: Notebook) -> None:
    two.run(FAILS)
    for line in ("!quit()", "!import sys; sys.exit(3)"):
        ran = two.run("%mn_debug 1", typed=typing(line))
        assert ran.ok, ran.error
    ran = two.run("%mn_debug 1", typed=typing("run", "restart", "debug 1/0", "p doubled", "q"))
    assert ran.ok, ran.error
    assert printed(ran).count("*** a rank has no program to begin anew") == 2
    assert "*** ZeroDivisionError: division by zero" in printed(ran)
    assert "\n8\n" in printed(ran)
    works(two)
