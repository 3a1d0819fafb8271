"""Ranks that talk from several threads: nothing is ended that may go on, and nothing hangs."""

from __future__ import annotations

import re

import pytest
from notebook_kernel import Notebook, works
from zoo import SOON, Shown

ALONE = {
    "joined": "t = Thread(target=comm.barrier, name='helper'); t.start(); t.join()",
    "in a pool": (
        "with ThreadPoolExecutor(1, 'helper') as pool: print(pool.submit(comm.barrier).done())"
    ),
    "whose result is asked for": "ThreadPoolExecutor(1, 'helper').submit(comm.barrier).result()",
}


@pytest.mark.parametrize("code", ALONE.values(), ids=ALONE)
def test_a_collective_that_a_thread_alone_calls_ends_the_cell(two: Notebook, code: str) -> None:
    ran = two.run(
        "%%mn\nfrom threading import Thread\nfrom concurrent.futures import ThreadPoolExecutor\n"
        f"if comm.rank == 0:\n    {code}",
        seconds=30,
    )
    assert ran.error_name == "RanksStuck", ran.error
    assert "rank 1 has finished the cell; thread helper" in ran.error
    assert "of rank 0 waited in barrier #" in ran.error
    works(two)


def test_a_thread_that_reads_ahead_keeps_no_failed_rank_alive(two: Notebook) -> None:
    label = two.next_cell()
    ran = two.run(
        "%%mn\nfrom queue import Queue\nfrom threading import Thread\nqueue = Queue(2)\n"
        "def feed():\n    for i in range(6): queue.put(i)\n"
        "Thread(target=feed, daemon=True).start()\n"
        "for i in range(3):\n    queue.get()\n    if comm.rank == 1 and i == 1: 1 / 0\n"
        "    comm.barrier()",
        seconds=30,
    )
    assert f"rank 1 raised ZeroDivisionError at {label} line 10" in ran.error
    assert re.search(rf"rank 0 waited in barrier #\d+ \({re.escape(label)} line 11\)", ran.error)
    two.check("%%mn\nwhile not queue.empty(): queue.get()")
    works(two)


def test_the_stop_button_reaches_threads(two: Notebook) -> None:
    shown = Shown("its thread helper_0 waits in barrier #")
    ran = two.run(
        "%%mn\nfrom concurrent.futures import ThreadPoolExecutor\n"
        "if comm.rank == 0:\n    with ThreadPoolExecutor(1, 'helper') as pool:\n"
        "        pool.submit(comm.barrier).result(60)",
        on_message=shown,
        interrupt_when=lambda: shown.after < SOON,
        seconds=30,
    )
    assert ran.error_name == "RanksInterrupted", ran.error
    works(two)


LEGAL = {
    "crosswise": """
a, b = comm.split(0, comm.rank), comm.split(0, comm.rank)
if comm.rank == 0:
    t = Thread(target=lambda: (time.sleep(3), b.barrier())); t.start()
    a.barrier(); t.join()
else:
    b.barrier(); a.barrier()
got = 3
""",
    "received after the end": """
def receive():
    global got
    time.sleep(3)
    got = comm.recv(0).sum()
if comm.rank == 1:
    Thread(target=receive).start()
else:
    comm.send(np.ones(3), 1)
    got = 3
""",
    "with a timer": """
got = 3
if comm.rank == 1:
    Timer(3, comm.send, (np.ones(3), 0)).start()
else:
    got = comm.recv(1).sum()
""",
}


@pytest.mark.parametrize("code", LEGAL.values(), ids=LEGAL)
def test_what_a_thread_will_call_is_waited_for(two: Notebook, code: str) -> None:
    ran = two.run(f"%%mn\nimport time\nfrom threading import Thread, Timer\n{code}", seconds=30)
    assert ran.ok, ran.error
    two.check("%%mn\nimport time\nwhile got != 3: time.sleep(0.01)")
    works(two)


def test_where_tells_of_threads(two: Notebook) -> None:
    two.check(
        "%%mn\nfrom threading import Event, Thread\nevent = Event()\n"
        "if comm.rank == 0:\n    def helps():\n        event.wait()\n"
        "    Thread(target=helps, name='helper').start()"
    )
    assert re.search(
        r"rank 0: idle; thread helper at cell \[\d+\] line 6\nrank 1: idle",
        two.check("%mn_where").text,
    )
    two.check("%mn event.set()")
