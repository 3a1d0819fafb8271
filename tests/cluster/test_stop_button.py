"""Jupyter's stop button, and then everything goes on."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from notebook_kernel import Notebook, wait_until, works

BODIES = {
    "a loop": "while True: pass",
    "sleep": "import time; time.sleep(60)",
    "a collective": "comm.rank or comm.barrier()\nwhile comm.rank: pass",
    "a collective, from both sides": "comm.recv_obj(1 - comm.rank)",
    "an await": "import asyncio; await asyncio.sleep(60)",
    "a coroutine that never awaits": "async def f():\n    while True: pass\nawait f()",
    "a thread's result": "import threading; threading.Event().wait()",
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
@pytest.mark.parametrize("presses", [1, 2])
def test_stop_button(two: Notebook, tmp_path: Path, body: str, presses: int) -> None:
    ran = two.run(
        f"%%mn\nimport pathlib; pathlib.Path({str(tmp_path)!r}, str(comm.rank)).touch()\n{body}",
        interrupt_when=lambda: len(list(tmp_path.iterdir())) == 2,
        seconds=20,
        presses=presses,
    )
    assert not ran.ok
    assert ran.error_name == "RanksInterrupted"
    works(two)


def test_stop_button_says_where_ranks_were(two: Notebook, tmp_path: Path) -> None:
    ran = two.run(
        f"%%mn\nimport pathlib, time\npathlib.Path({str(tmp_path)!r}, str(comm.rank)).touch()\n"
        "while True:\n    time.sleep(0.01)",
        interrupt_when=lambda: len(list(tmp_path.iterdir())) == 2,
    )
    assert "ranks 0, 1:\nstopped at cell [" in ran.text


def test_stop_button_in_the_first_moment(two: Notebook) -> None:
    """The command may reach a rank before the cell does."""
    for moment in (0.0, 0.01, 0.02, 0.04):
        began: list[float] = []

        def due(began: list[float] = began, moment: float = moment) -> bool:
            return bool(began) and time.monotonic() - began[0] >= moment

        ran = two.run(
            "print('begun')\nget_ipython().run_cell_magic('mn', '', 'import time; time.sleep(60)')",
            interrupt_when=due,
            on_message=lambda ran, began=began: (
                began.append(time.monotonic()) if "begun" in ran.text else None
            ),
            seconds=20,
        )
        assert ran.error_name == "RanksInterrupted"
        works(two)


def test_a_cell_that_ignores_the_interrupt(two: Notebook, tmp_path: Path) -> None:
    stop = tmp_path / "stop"
    started = tmp_path / "started"
    ran = two.run(
        f"""%%mn 0
import os, pathlib, time
pathlib.Path({str(started)!r}).touch()
while not os.path.exists({str(stop)!r}):
    try: time.sleep(60)
    except KeyboardInterrupt: pass
""",
        interrupt_when=started.exists,
        seconds=30,
    )
    assert ran.error_name == "ClusterError"
    assert "rank 0 did not answer the interrupt" in ran.error
    two.check("%%mn 1\nkept")  # the other rank is free
    ran = two.check("%%mn --bg -o later\ncomm.rank")
    assert "rank 0 still runs cell" in ran.text
    assert two.value("later.done()") is False
    assert "rank 0 still runs cell" in two.run("tmp = 1\n%mn_push tmp --ranks 0").error
    stop.touch()
    # One more interrupt ends the sleep; the loop then sees the file.
    two.check(
        "s = get_ipython().magics_manager.registry['ClusterMagics'].context.session\n"
        "s.active[0].interrupt()"
    )
    assert two.value("later.results()") == {0: 0, 1: 1}
    works(two)


def test_a_rank_that_caught_the_interrupt_long_ago_is_asked_again(
    two: Notebook, tmp_path: Path
) -> None:
    two.check("import nbmn.cluster.pressing as pressing\nbefore = pressing.PRESS_MEMORY")
    two.check("pressing.PRESS_MEMORY = 0.2")
    two.check(
        f"""%%mn --bg -o run
import pathlib
here = pathlib.Path({str(tmp_path)!r})
try:
    (here / f"begun{{comm.rank}}").touch()
    while True: pass
except KeyboardInterrupt:
    pass
(here / f"caught{{comm.rank}}").touch()
while True: pass
"""
    )
    for word in ("begun", "caught"):
        wait_until(lambda word=word: len(list(tmp_path.glob(f"{word}*"))) == 2, 10, word)
        assert "interrupted ranks 0, 1" in two.check("%mn_interrupt").text
    assert "raised KeyboardInterrupt" in two.run("run.wait()").error
    two.check("pressing.PRESS_MEMORY = before")
    works(two)


def test_handle_interrupts_a_background_cell(two: Notebook, tmp_path: Path) -> None:
    two.check(
        f"%%mn --bg -o run\nimport pathlib; pathlib.Path({str(tmp_path)!r}, str(comm.rank)).touch()"
        "\nwhile True: pass"
    )
    wait_until(lambda: len(list(tmp_path.iterdir())) == 2, 10, "both ranks run")
    two.check("run.interrupt()")
    ran = two.run("run.wait()")
    assert "raised KeyboardInterrupt" in ran.error
    assert two.value("run.status") == "interrupted"
    works(two)


def test_a_queued_cell_that_is_stopped_never_runs(two: Notebook, tmp_path: Path) -> None:
    go = tmp_path / "go"
    two.check(
        f"%%mn --bg -o first\nimport os, time\nran = []\n"
        f"while not os.path.exists({str(go)!r}): time.sleep(0.01)"
    )
    told: list[bool] = []
    ran = two.run(
        "%%mn\nran.append(1)",
        interrupt_when=lambda: bool(told),
        on_message=lambda ran: told.append(True) if "comes after it" in ran.text else None,
        seconds=20,
    )
    assert ran.error_name == "RanksInterrupted"
    go.touch()
    two.check("first.wait()")
    two.check("%mn assert ran == []")
    works(two)


def test_stop_before_the_notebook_waits_stops_the_ranks(two: Notebook, tmp_path: Path) -> None:
    """The press lands between the sending of the cell and the wait for it."""
    two.check(
        "from nbmn.cluster.session import Session\n"
        "submit = Session.submit\n"
        "def press(self, *args, **kwargs):\n"
        "    submit(self, *args, **kwargs)\n"
        "    raise KeyboardInterrupt\n"
        "Session.submit = press"
    )
    try:
        ran = two.run("%%mn\nwhile True: pass", seconds=30)
    finally:
        two.check("Session.submit = submit")
    assert ran.error_name == "RanksInterrupted"
    works(two)


@pytest.mark.parametrize(
    ("magic", "function", "told"),
    [
        ("%mn_where", "nbmn.cluster.whereabouts.await_answers", "%mn_where was stopped"),
        ("%mn_trace", "nbmn.cluster.timelines.await_answers", "%mn_trace was stopped"),
    ],
)
def test_a_magic_that_is_stopped_says_so_in_one_line(
    two: Notebook, magic: str, function: str, told: str
) -> None:
    module, _, name = function.rpartition(".")
    two.check(f"import {module} as module\nbefore = module.{name}")
    two.check(f"def press(*args): raise KeyboardInterrupt\nmodule.{name} = press")
    try:
        ran = two.run(magic)
    finally:
        two.check(f"module.{name} = before")
    assert ran.error == f"KeyboardInterrupt: {told}; the ranks were not"
    works(two)


def test_stop_while_ranks_are_stopped(fresh: Notebook) -> None:
    fresh.check("%mn_start 2")
    fresh.check(
        "from nbmn.magics.context import Context\nstop = Context.stop\n"
        "def press(self, *args):\n    stop(self, *args)\n    raise KeyboardInterrupt\n"
        "Context.stop = press"
    )
    ran = fresh.run("%mn_stop")
    assert ran.error == "KeyboardInterrupt: stopped while ranks were ending; none runs"


def test_stop_while_communicators_are_renewed(two: Notebook) -> None:
    two.check(
        "from nbmn.cluster.session import Session\nimport threading\n"
        "renew, renewed = Session._renew_if_stale, threading.Event()\n"
        "def wait(self):\n    renewed.wait(30)\n    renew(self)\n"
        "Session._renew_if_stale = wait"
    )
    began = time.monotonic()
    try:
        ran = two.run(
            "print('begins')\nget_ipython().run_cell_magic('mn', '', 'renewed_ran = 1')",
            interrupt_when=lambda: time.monotonic() - began > 0.5,
            seconds=30,
        )
    finally:
        two.check("Session._renew_if_stale = renew\nrenewed.set()")
    assert ran.error == "KeyboardInterrupt: stopped on ranks 0, 1"
    two.check("%mn assert 'renewed_ran' not in globals()")
    works(two)


def test_three_presses_in_a_moment_say_how_long_that_was(two: Notebook, tmp_path: Path) -> None:
    ran = two.run(
        f"%%mn 0\nimport pathlib, time\nend = time.monotonic() + 4\n"
        f"pathlib.Path({str(tmp_path)!r}, 'begun').touch()\n"
        "while time.monotonic() < end:\n    try: time.sleep(4)\n"
        "    except KeyboardInterrupt: pass",
        interrupt_when=lambda: bool(list(tmp_path.iterdir())),
        presses=3,
        seconds=30,
    )
    assert "nothing was killed: rank 0 did not answer the interrupt within 0." in ran.error
    works(two)
