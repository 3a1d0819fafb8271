"""Cells in the background: --bg."""

from __future__ import annotations

from pathlib import Path

from notebook_kernel import Notebook


def _until(path: Path) -> str:
    return (
        f"import os, time\nlimit = time.monotonic() + 30\n"
        f"while not os.path.exists({str(path)!r}) and time.monotonic() < limit: time.sleep(0.01)\n"
    )


def test_returns_at_once_and_output_appears_under_it(two: Notebook, tmp_path: Path) -> None:
    go = tmp_path / "go"
    ran = two.check(f"%%mn --bg -o run\nprint('early', comm.rank)\n{_until(go)}print('late')")
    assert two.value("run.done()") is False
    two.check("print('another cell')")
    two.follow(ran, lambda ran: "early 0" in ran.text and "early 1" in ran.text)
    assert "late" not in ran.text
    go.touch()
    two.follow(ran, lambda ran: ran.text == "rank 0:\nearly 0\nlate\nrank 1:\nearly 1\nlate")


def test_the_handle_gives_values(two: Notebook) -> None:
    two.check("%%mn --bg -o run\ncomm.rank + 1")
    assert two.value("run.results()") == {0: 1, 1: 2}
    assert two.value("(run.done(), run.status, run.failed)") == (True, "done", False)
    ran = two.check("%%mn --bg\n3")
    assert "<cell [" in ran.text
    error = two.run("_.results()").error
    assert "-o NAME" in error


def test_a_cell_queues_behind_it(two: Notebook, tmp_path: Path) -> None:
    go = tmp_path / "go"
    two.check(f"%%mn --bg -o first\norder = ['first']\n{_until(go)}order.append('end of first')")
    two.check("%%mn --bg -o second\norder.append('second')")
    ran = two.check("%%mn 1 --bg -o third\norder.append('third'); order")
    assert "rank 1 still runs cell" in ran.text
    assert "waiting for its turn" in two.check("third").text
    go.touch()
    assert two.value("third.results()") == {1: ["first", "end of first", "second", "third"]}


def test_ranks_that_are_free_do_not_wait(two: Notebook, tmp_path: Path) -> None:
    go = tmp_path / "go"
    two.check(f"%%mn 0 --bg -o run\n{_until(go)}")
    two.check("%%mn 1 -o got\n'free'")
    assert two.value("got") == {1: "free"}
    ran = two.run("x = 3\n%mn_push x")
    assert "rank 0 still runs cell" in ran.error
    two.check("%mn_push x --ranks 1\n%mn_pull x 1")
    go.touch()
    two.check("run.wait()")


def test_a_failing_one_fails_where_it_is_waited_for(two: Notebook) -> None:
    two.check(
        "%%mn --bg -o run\nif comm.rank: raise ValueError('in the background')\ncomm.barrier()"
    )
    two.check("%%mn -o got\ncomm.allreduce(np.array([1.0]))[0] == 2")  # queued, and healed before
    assert two.value("[bool(v) for v in got.values()]") == [True, True]
    assert "raised ValueError" in two.run("run.results()").error
    ran = two.run("run.wait()")
    assert "rank 1 raised ValueError" in ran.error
    assert "rank 0 waited in barrier #" in ran.error


def test_a_failing_one_says_so_under_its_cell(two: Notebook) -> None:
    ran = two.check("%%mn --bg -o run\nraise ValueError('nobody waits for me')")
    two.follow(ran, lambda ran: "ValueError at cell" in ran.text)
    two.run("run.wait()")


def test_one_that_waits_for_ever_is_freed_when_the_notebook_waits_behind_it(two: Notebook) -> None:
    two.check("%%mn 1 --bg -o stuck\ncomm.barrier()")
    ran = two.run("%%mn -o got\ncomm.rank", seconds=20)
    assert ran.ok
    assert two.value("got") == {0: 0, 1: 1}
    assert "rank 0 does not run this cell" in two.run("stuck.wait()").error
    # While the notebook is free, another cell may bring the ranks that are missing.
    two.check("%%mn 1 --bg -o stuck\ncomm.barrier()")
    two.check("%%mn 0\ncomm.barrier()")
    two.check("stuck.wait()")


def test_one_that_failed_is_what_another_cell_waits_for(two: Notebook) -> None:
    label = two.next_cell()
    two.check("%%mn 0 --bg -o run\nraise ValueError('no data')")
    two.run("run.wait()")
    ran = two.run("%%mn 1\ncomm.recv(0)", seconds=20)
    assert (
        "rank 0 does not run this cell: in an earlier one rank 0 raised ValueError at "
        f"{label} line 2: no data; rank 1 waited in recv" in ran.error
    )
    two.check("%mn 0")
    assert "raised ValueError" not in two.run("%%mn 1\ncomm.recv(0)", seconds=20).error
