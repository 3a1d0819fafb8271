"""Cells that fail: who, what, where; and everything works afterwards."""

from __future__ import annotations

from pathlib import Path

import pytest
from notebook_kernel import ANSI, Notebook, works


def _label(two: Notebook) -> str:
    """What the next cell is called in tracebacks."""
    return two.next_cell()


def test_a_failed_rank_fails_the_cell_with_rank_cell_and_line(two: Notebook) -> None:
    label = _label(two)
    ran = two.run("%%mn\nx = 1\nif comm.rank == 1:\n    raise ValueError('just here')")
    assert not ran.ok
    assert ran.error_name == "RanksFailed"
    assert f"rank 1 raised ValueError at {label} line 4: just here" in ran.error
    assert "rank 0" not in ran.error
    assert "ipyparallel" not in ran.error
    assert "nbmn" not in ran.error
    works(two)


def test_equal_errors_are_folded_and_others_are_not(two: Notebook) -> None:
    ran = two.run("%%mn\n1 / 0")
    assert ran.error.count("ZeroDivisionError at") == 1
    assert "ranks 0, 1 raised ZeroDivisionError" in ran.error
    ran = two.run("%%mn\nraise KeyError(comm.rank)")
    assert "rank 0 raised KeyError" in ran.error
    assert "rank 1 raised KeyError" in ran.error
    works(two)


def test_the_line_is_the_cells_even_when_a_library_raised(two: Notebook) -> None:
    label = _label(two)
    ran = two.run("%%mn 0\n\nimport json\njson.loads('{')")
    assert f"rank 0 raised JSONDecodeError at {label} line 4" in ran.error
    label = _label(two)
    two.check("%%mn\ndef deep(n):\n    return deep(n - 1) if n else 1 / n")
    ran = two.run("%%mn 0\ndeep(3)")
    assert f"ZeroDivisionError at {label} line 3" in ran.error


def test_ranks_stranded_in_a_collective_are_freed(two: Notebook) -> None:
    label = _label(two)
    ran = two.run(
        "%%mn\nif comm.rank == 0:\n    raise RuntimeError('gone')\ncomm.barrier()", seconds=20
    )
    assert "rank 0 raised RuntimeError" in ran.error
    assert "rank 1 waited in barrier #" in ran.error
    assert f"({label} line 4) for" in ran.error
    works(two)


def test_output_of_a_failed_cell_is_shown(two: Notebook) -> None:
    ran = two.run("%%mn\nprint('before')\n1 / 0")
    assert ran.text == "ranks 0, 1:\nbefore"


def test_syntax_errors_of_other_code_name_the_user_s_line(two: Notebook, tmp_path: Path) -> None:
    label = two.next_cell()
    ran = two.run("%%mn\nx = 1\nexec('y = = 2')")
    assert f"ranks 0, 1 raised SyntaxError at {label} line 3: invalid syntax" in ran.error
    assert "(<string> line 1)" in ran.error
    (tmp_path / "wrong.py").write_text("x = 1\ny = = 2\n")
    label = two.next_cell()
    ran = two.run(f"%%mn\nimport sys; sys.path.insert(0, {str(tmp_path)!r})\n\nimport wrong")
    assert f"SyntaxError at {label} line 4: invalid syntax (wrong.py line 2)" in ran.error
    label = two.next_cell()
    assert f"at {label} line 2: by hand" in two.run("%%mn\nraise SyntaxError('by hand')").error


@pytest.mark.parametrize("magic", ["%%time", "%%capture"])
def test_lines_below_another_cell_magic(two: Notebook, magic: str) -> None:
    two.check("%mn comm.barrier()")  # not counted in the next cell
    label = two.next_cell()
    ran = two.run(f"%%mn\n{magic}\nx = 1\n1 / 0 if comm.rank else comm.barrier()")
    assert f"rank 1 raised ZeroDivisionError at {label} line 4" in ran.error
    assert f"rank 0 waited in barrier #1 ({label} line 4)" in ran.error
    assert "----> 4 1 / 0 if comm.rank" in ANSI.sub("", ran.error)


def test_syntax_error(two: Notebook) -> None:
    label = _label(two)
    ran = two.run("%%mn\nx = 1\nx = = 2")
    assert f"ranks 0, 1 raised SyntaxError at {label} line 3: invalid syntax" in ran.error
    assert "%mn_debug" not in ran.error  # no line ran
    works(two)


@pytest.mark.parametrize(
    "code", ["raise SystemExit(3)", "import sys; sys.exit('bye')", "exit()", "quit()"]
)
def test_exits_end_the_cell_and_not_the_rank(two: Notebook, code: str) -> None:
    label = two.next_cell()
    ran = two.run(f"%%mn\n{code}")
    first = ran.error.partition("\n")[0]
    assert first.startswith(f"ranks 0, 1 raised SystemExit at {label} line 2: ")
    assert first.endswith("this ends the cell and not the rank; %mn_stop ends the ranks")
    assert f"----> 2 {code}" in ran.error
    assert "nbmn/" not in ran.error
    assert ran.text == ""
    works(two)


def test_classes_the_notebook_does_not_know(two: Notebook) -> None:
    two.check("%%mn\nclass Strange(Exception):\n    def __str__(self): raise RuntimeError('no')")
    ran = two.run("%%mn\nraise Strange")
    assert "ranks 0, 1 raised Strange at cell" in ran.error
    assert "RuntimeError" in ran.error
    two.check("%%mn\nclass Worse(Exception):\n    def __str__(self): return 3")
    assert "raised Worse" in two.run("%%mn\nraise Worse").error
    two.check("%%mn\nclass Base(BaseException): pass")
    assert "raised Base" in two.run("%%mn\nraise Base('x')").error
    two.check("%%mn\nNowhere = type('Nowhere', (MemoryError,), {'__module__': None})")
    assert "raised Nowhere at cell" in two.run("%%mn\nraise Nowhere('x')").error
    works(two)


def test_an_output_that_cannot_be_flushed_is_put_back(two: Notebook) -> None:
    """The engine flushes it before it answers, and would never."""
    two.check("%%mn\nimport sys\nif comm.rank == 1: sys.stdout = sys.stderr = None")
    ran = two.run(
        "%%mn\nprint('x')\nclass Full:\n    def flush(self): raise OSError\n"
        "sys.stdout = Full()\n1 / 0"
    )
    assert "ranks 0, 1 raised ZeroDivisionError" in ran.error
    assert ran.text == "ranks 0, 1:\nx"
    assert two.check("%mn print('y')").text == "ranks 0, 1:\ny"
    works(two)


def test_weird_messages(two: Notebook) -> None:
    assert "Ω\n$x {y} %s" in two.run("%%mn\nraise ValueError('Ω\\n$x {y} %s')").error
    ran = two.run("%%mn\nraise ValueError('x' * 1_000_000)")
    headline = ran.error.splitlines()[0]
    assert "(1000000 characters)" in headline
    assert len(headline) < 3000
    ran = two.run("%%mn\nraise ValueError(b'\\xff', '\\ud800')")
    assert "raised ValueError" in ran.error
    works(two)


def test_groups_and_chains(two: Notebook) -> None:
    ran = two.run("%%mn\nraise ExceptionGroup('several', [ValueError('one'), TypeError('two')])")
    assert "ranks 0, 1 raised ExceptionGroup" in ran.error
    assert "one" in ran.error
    assert "two" in ran.error
    ran = two.run(
        "%%mn\ntry:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise OSError('outer') from e"
    )
    assert "raised OSError" in ran.error
    assert "ZeroDivisionError" in ran.error
    works(two)


def test_recursion(two: Notebook) -> None:
    ran = two.run("%%mn\ndef f(): f()\nf()")
    assert "ranks 0, 1 raised RecursionError at cell" in ran.error
    assert len(ran.error.splitlines()) < 200
    works(two)


def test_run_all_stops_at_a_failed_cell(two: Notebook) -> None:
    assert not two.run("%mn 1 / 0\nafter = True").ok
    assert not two.value("'after' in globals()")


def test_a_failing_rank_is_told_at_once_when_others_go_on(two: Notebook) -> None:
    told: list[str] = []

    def stop_when_told() -> bool:
        return bool(told)

    def note(ran: object) -> None:
        if "ValueError at" in ran.text:  # type: ignore[attr-defined]
            told.append("told")

    ran = two.run(
        "%%mn\nimport time\nif comm.rank: raise ValueError('early')\nwhile True: time.sleep(0.01)",
        interrupt_when=stop_when_told,
        on_message=note,
        seconds=20,
    )
    assert ran.error_name == "RanksInterrupted"
    assert "ValueError at" in ran.text
    works(two)


def test_a_cell_magic_within(two: Notebook) -> None:
    ran = two.run("%%mn 0\n%%time\nx = 1\n1 / 0")
    assert "rank 0 raised ZeroDivisionError" in ran.error
    works(two)


def test_errors_that_do_not_fail_the_cell_are_shown(two: Notebook, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import math\nmath.sqrt(-1)\n")
    ran = two.run(f"%%mn\n%run {script}")
    assert "ValueError" in ran.text + ran.error
    works(two)


def test_the_last_exception_is_kept_for_the_debugger(two: Notebook) -> None:
    two.run("%mn 1 / 0")
    two.check("%%mn\nimport sys\nassert isinstance(sys.last_value, ZeroDivisionError)")


def test_a_call_that_nbmn_refuses_is_shown_at_the_user_s_line(two: Notebook) -> None:
    ran = two.run("%%mn\ndef call():\n    comm.allreduce(np.ones(2 + comm.rank))\ncall()")
    assert "MismatchError" in ran.error
    assert "comm.allreduce(np.ones(2 + comm.rank))" in ran.error
    assert "agreement.py" not in ran.error
    assert "activity.py" not in ran.error
    assert "%mn_debug 0 opens a debugger there" in ran.error


def test_magics_say_how_they_are_used(two: Notebook) -> None:
    for line in ("%mn_where --help", "%mn_debug -h", "%%mn -h\n1", "%mn_diff -h", "%mn_stop -h"):
        assert two.check(line).text.startswith(f"{line.split()[0]}")
    said = two.run("%mn_push x --to 1").streams["stderr"]
    assert "UsageError: unrecognized arguments: --to 1\nusage: %mn_push NAME " in said
    assert "'foo' is no rank; name one, such as 0" in two.run("%mn_debug foo").error
    two.run("%mn_stop now")
    assert "idle" in two.check("%mn_status").text


def test_the_error_that_a_finally_passed_on_is_named_first(two: Notebook) -> None:
    label = _label(two)
    ran = two.run(
        "%%mn\ntry:\n    if comm.rank == 1: raise ValueError('root cause')\n"
        "    comm.allreduce(np.ones(3))\nfinally:\n    comm.barrier()",
        seconds=20,
    )
    assert ran.error.startswith(
        f"rank 1 raised ValueError at {label} line 3: root cause; then MismatchError at "
        f"{label} line 6: "
    )
    works(two)
    label = _label(two)
    ran = two.run(
        "%%mn\ntry:\n    if comm.rank == 1: raise ValueError('root cause')\n"
        "finally:\n    if comm.rank == 1: comm.barrier()",
        seconds=20,
    )
    assert ran.error.startswith(
        f"rank 1 raised ValueError at {label} line 3: root cause; then KeyboardInterrupt at "
        f"{label} line 5\nrank 1 waited in barrier"
    )
    assert "waiting.py" not in ran.error
    works(two)


def test_a_traceback_is_no_longer_than_a_person_reads(two: Notebook) -> None:
    for text in ("'x' * 3_000_000", "'x\\n' * 1_000_000"):
        ran = two.run(f"%%mn\nraise ValueError({text})")
        assert "----> 2 raise ValueError" in ran.error
        assert "characters)" in ran.error
        assert len(ran.error) < 200_000
    works(two)
