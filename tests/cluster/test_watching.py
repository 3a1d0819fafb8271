"""``%mn_where``, ``%mn_interrupt``, and the second press of the stop button."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from notebook_kernel import Notebook, Ran, all_gone, wait_until, works

RANKS = 3
HOLD = "import ctypes, os; ctypes.PyDLL(None).read(os.pipe()[0], ctypes.create_string_buffer(1), 1)"
"""Native code that holds the interpreter for ever; no interrupt reaches it."""


@pytest.fixture(scope="module")
def module_three() -> Iterator[Notebook]:
    notebook = Notebook()
    notebook.check(f"%load_ext nbmn\n%mn_start {RANKS}")
    yield notebook
    notebook.close()


@pytest.fixture
def three(module_three: Notebook) -> Notebook:
    module_three.check("%mn kept = comm.rank")
    return module_three


def begin(three: Notebook, folder: Path, code: str, ranks: str = "") -> str:
    """Run a cell in the background; returns its label once all of its ranks are in it."""
    count = RANKS if not ranks else len(ranks.split(","))
    touch = f"import pathlib; pathlib.Path({str(folder)!r}, str(comm.rank)).touch()"
    three.check(f"%%mn --bg -o run {ranks}\n{touch}\n{code}")
    wait_until(lambda: len(list(folder.iterdir())) == count, 10, "all ranks run")
    return f"cell {three.value('run.request.label')}"


def where_until(three: Notebook, text: str, line: str = "") -> Ran:
    """What %mn_where says once ``text`` is in it."""
    deadline = time.monotonic() + 10
    while text not in (ran := three.check(f"%mn_where {line}")).text:
        assert time.monotonic() < deadline, f"{text!r} is not in\n{ran.text}"
    return ran


def test_where_between_cells(three: Notebook) -> None:
    assert three.check("%mn_where").text == "ranks 0–2: idle"
    assert three.check("%mn_where 1").text == "rank 1: idle"


def test_where_folds_equal_stacks_and_names_cells_and_lines(
    three: Notebook, tmp_path: Path
) -> None:
    functions = three.next_cell()
    three.check("%%mn\nimport time\ndef outer():\n    inner()\ndef inner():\n    time.sleep(60)")
    three.check("%mn comm.barrier()")  # not counted in the next cell
    cell = begin(three, tmp_path, "comm.barrier()\nif comm.rank == 1:\n    outer()\ncomm.barrier()")
    ran = where_until(three, "ranks 0, 2: in barrier #2 (")
    rank_1 = ran.text[ran.text.index("rank 1: ") :]
    assert rank_1.startswith("rank 1: in the cell for ")
    assert "sleeps" in rank_1.splitlines()[0]
    assert rank_1.splitlines()[1:] == [
        f"  {cell} line 5 in <module>: outer()",
        f"  {functions} line 4 in outer: inner()",
        f"  {functions} line 6 in inner: time.sleep(60)",
    ]
    others = ran.text[: ran.text.index("rank 1: ")]
    assert f"({cell} line 6) for " in others
    assert others.splitlines()[1:] == [f"  {cell} line 6 in <module>: comm.barrier()"]
    (data,) = ran.displays.values()
    assert f"{cell} line 6" in data["text/html"]
    assert "time.sleep(60)" in data["text/html"]
    assert "interrupted ranks 0–2" in three.check("%mn_interrupt").text
    works(three, RANKS)


def test_where_of_ranks_in_a_call_of_mpi4py(three: Notebook, tmp_path: Path) -> None:
    """Of which nbmn knows nothing: all of them run, as far as it can tell."""
    go, ranks = tmp_path / "go", tmp_path / "ranks"
    ranks.mkdir()
    wait = f"    while not pathlib.Path({str(go)!r}).exists(): time.sleep(0.01)"
    code = (
        f"import time\nfrom mpi4py import MPI\nif comm.rank == 0:\n{wait}\nMPI.COMM_WORLD.Barrier()"
    )
    cell = begin(three, ranks, code)
    text = where_until(three, "s, calls MPI.COMM_WORLD.Barrier()\n", "1,2").text
    assert text.startswith("ranks 1, 2: in the cell for ")
    assert text.endswith(f"  {cell} line 7 in <module>: MPI.COMM_WORLD.Barrier()")
    go.touch()
    three.check("run.wait()")
    works(three, RANKS)


def test_where_of_a_rank_whose_interpreter_is_held(three: Notebook, tmp_path: Path) -> None:
    go = tmp_path / "go"
    os.mkfifo(go)
    (tmp_path / "ranks").mkdir()
    read = f"import ctypes, os; end = os.open({str(go)!r}, os.O_RDWR)"
    hold = "ctypes.PyDLL(None).read(end, ctypes.create_string_buffer(1), 1)"
    cell = begin(three, tmp_path / "ranks", f"if comm.rank == 2:\n    {read}\n    {hold}")
    wait_until(lambda: three.value("run.running()") == [2], 10, "the others are done")
    ran = where_until(three, "native code holds the interpreter")
    assert f"native code holds the interpreter at {cell} line 5" in ran.text
    assert f"  {cell} line 5 in <module>" in ran.text
    assert "ranks 0, 1: idle" in ran.text
    go.write_text("go")
    three.check("run.wait()")
    works(three, RANKS)


def test_where_of_an_idle_rank_that_is_stopped(three: Notebook) -> None:
    three.check("%%mn -o pids\nimport os\nos.getpid()")
    pid = three.value("pids")[1]
    os.kill(pid, signal.SIGSTOP)
    try:
        where_until(three, f"rank 1: is stopped by a signal; kill -CONT {pid} lets it go on")
    finally:
        os.kill(pid, signal.SIGCONT)
    where_until(three, "ranks 0–2: idle")
    works(three, RANKS)


def test_where_leaves_a_sleep_in_native_code_as_it_is(three: Notebook, tmp_path: Path) -> None:
    sleep = "left = ctypes.PyDLL(None).sleep(5)  # seconds it was cut short by"
    cell = begin(three, tmp_path, f"import ctypes\nif comm.rank == 2:\n    {sleep}")
    wait_until(lambda: three.value("run.running()") == [2], 10, "the others are done")
    ran = where_until(three, "native code holds the interpreter")
    assert "no stack: the signal that asks for it would cut short the system call" in ran.text
    assert f"{cell} line 5 in <module>" not in ran.text
    three.check("run.wait()")
    three.check("%%mn -o got 2\nleft")
    assert three.value("got") == {2: 0}
    works(three, RANKS)


def test_interrupting_one_rank_frees_those_that_wait_for_it(
    three: Notebook, tmp_path: Path
) -> None:
    cell = begin(three, tmp_path, "if comm.rank == 1:\n    while True: pass\ncomm.barrier()")
    assert "interrupted rank 1" in three.check("%mn_interrupt 1").text
    ran = three.run("run.wait()", seconds=10)
    assert f"rank 1 raised KeyboardInterrupt at {cell} line 4" in ran.error
    assert "ranks 0, 2 waited in barrier" in ran.error
    works(three, RANKS)


def test_a_failure_in_the_background_stays_in_view(three: Notebook) -> None:
    ran = three.check("%%mn --bg -o run\nif comm.rank == 1: 1 / 0\ncomm.barrier()")
    three.follow(ran, lambda ran: "ranks 0, 2 waited in barrier" in ran.text)
    assert "rank 1 raised ZeroDivisionError" in ran.text
    works(three, RANKS)


def test_ranks_that_another_cell_may_still_join_are_left_alone(three: Notebook) -> None:
    ran = three.check("%%mn --bg -o run 0\nfloat(comm.allreduce(np.array([1.0]))[0])")
    three.follow(ran, lambda ran: "ranks 1, 2 do not run this cell" in ran.text)
    three.check("%%mn 1:\ncomm.allreduce(np.array([1.0]))")
    assert three.value("run.results()") == {0: 3.0}
    # Nothing else can be run while the notebook waits.
    ran = three.run("%%mn 0\ncomm.allreduce(np.array([1.0]))", seconds=10)
    assert "ranks 1, 2 do not run this cell; rank 0 waited in allreduce" in ran.error
    works(three, RANKS)


def test_interrupt_when_nothing_runs(three: Notebook) -> None:
    assert "no cell runs there" in three.check("%mn_interrupt").text
    assert "no rank 7" in three.run("%mn_interrupt 7").error


def test_a_second_interrupt_kills_after_a_countdown(three: Notebook, tmp_path: Path) -> None:
    processes = three.descendants()
    cell = begin(three, tmp_path, HOLD, "1")
    ran = three.run("%mn_interrupt", seconds=20)
    assert "rank 1 did not answer the interrupt within" in ran.error
    assert f"native code holds the interpreter at {cell} line 3" in ran.error
    assert "%mn_interrupt once more kills it" in ran.error
    seen: list[str] = []
    ran = three.run("%mn_interrupt", on_message=lambda ran: seen.append(ran.text), seconds=20)
    counted = [text for text in seen if "killed in" in text]
    assert "rank 1 has not answered; killed in 3 s" in counted[0]
    assert "killed in 1 s" in counted[-1]
    assert "rank 1 did not answer the interrupt and was killed" in ran.error
    assert "%mn_restart starts 3 new ranks" in ran.error
    three.check("%mn_restart")
    assert all_gone(processes)
    three.check("%mn kept = comm.rank")
    works(three, RANKS)


def test_a_second_press_kills_and_a_third_prevents_it(three: Notebook, tmp_path: Path) -> None:
    three.check("%mn import ctypes")
    touched = tmp_path / "1"
    code = (
        f"%%mn 1\nimport pathlib; pathlib.Path({str(touched)!r}).touch()\n"
        "ctypes.PyDLL(None).sleep({})"
    )
    ran = three.run(code.format(7), interrupt_when=touched.exists, presses=3, seconds=30)
    assert "nothing was killed: rank 1 did not answer the interrupt" in ran.error
    works(three, RANKS)  # after the native code has returned
    touched.unlink()
    ran = three.run(code.format(60), interrupt_when=touched.exists, presses=2, seconds=30)
    assert "rank 1 did not answer the interrupt and was killed" in ran.error
    three.check("%mn_restart")
    three.check("%mn kept = comm.rank")
    works(three, RANKS)


def test_a_rank_that_ends_lets_go_of_the_notebook_before_mpiexec(two: Notebook) -> None:
    """So that the notebook sees it end before mpiexec does, which then kills the others."""
    two.check("""%%mn
import os
from nbmn.engine.lifeline import lifeline
pipe = os.readlink(f"/proc/self/fd/{lifeline()}")
files = {int(n): f"/proc/self/fd/{n}" for n in os.listdir("/proc/self/fd")}
near = max(n for n, path in files.items() if os.path.exists(path) and os.readlink(path) == pipe)
assert near == max(files), (near, sorted(files))""")
