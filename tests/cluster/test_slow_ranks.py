"""Ranks that are slow, blocked, stopped or dead: shown as that, and no alarm where all is legal.

NBMN_SLOW_SECONDS is how long a rank may keep the others waiting without an alarm (60 in earnest).
"""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest
from notebook_kernel import Notebook, Ran, works
from zoo import RANKS, SETUP, SOON, Shown

SLOW = float(os.environ.get("NBMN_SLOW_SECONDS", "4.5"))

BLOCKED = {
    "a pipe nobody writes to": ("os.read(os.pipe()[0], 1)", "reads a pipe"),
    "a FIFO nobody writes to": ("open({path!r}).read()", "opens {path}"),
    "a socket": ("a, b = __import__('socket').socketpair(); a.recv(1)", "reads a socket"),
    "a child": ("subprocess.run(['sleep', '100'])", "waits for a child process"),
    "Python code": ("while True: pass", "runs"),
}


@pytest.mark.parametrize(("call", "does"), BLOCKED.values(), ids=BLOCKED.keys())
def test_a_rank_that_is_blocked_is_shown(
    zoo: Notebook, tmp_path: Path, call: str, does: str
) -> None:
    path = str(tmp_path / "fifo")
    os.mkfifo(path)
    cell = zoo.next_cell()
    shown = Shown(
        f"rank 1 {does.format(path=path)} at {cell} line 3; ranks 0, 2, 3 wait in barrier"
    )
    ran = zoo.run(
        f"%%mn\nif comm.rank == 1:\n    {call.format(path=path)}\ncomm.barrier()",
        on_message=shown,
        interrupt_when=lambda: shown.after < SOON,
        seconds=20,
    )
    assert shown.after < SOON
    assert ran.error_name == "RanksInterrupted"
    assert f"stopped at {cell} line 3" in ran.text
    works(zoo, RANKS)


def test_a_rank_in_a_call_of_mpi4py_is_shown(zoo: Notebook) -> None:
    cell = zoo.next_cell()
    says = f"; rank 1 calls MPI.COMM_WORLD.recv(source=0) at {cell} line 4; ranks 2, 3 wait in barr"
    shown = Shown(says)
    ran = zoo.run(
        "%%mn\nfrom mpi4py import MPI\nif comm.rank == 1:\n"
        "    MPI.COMM_WORLD.recv(source=0)\nelif comm.rank == 0:\n"
        "    time.sleep(4); MPI.COMM_WORLD.send(None, 1)\ncomm.barrier()",
        on_message=shown,
        seconds=20,
    )
    assert ran.ok, ran.error
    assert shown.after < SOON
    works(zoo, RANKS)


HOLDS = """%%mn
libc, reading, writing = ctypes.PyDLL(None), *os.pipe()
time.sleep(0.5)
if comm.rank == 3:
    subprocess.Popen(["sh", "-c", f"sleep 4.5; echo > /proc/{os.getpid()}/fd/{writing}"])
    libc.read(reading, ctypes.create_string_buffer(1), 1)
comm.barrier()"""


def test_native_code_that_holds_the_interpreter(zoo: Notebook) -> None:
    cell = zoo.next_cell()
    shown = Shown(f"rank 3 is silent for 3 s: native code holds the interpreter at {cell} line 6")
    waiting = Shown("ranks 0–2 wait in barrier")

    def both(ran: Ran) -> None:
        shown(ran)
        waiting(ran)

    ran = zoo.run(HOLDS, on_message=both, seconds=20)
    assert ran.ok, ran.error
    assert max(shown.after, waiting.after) < SOON
    works(zoo, RANKS)


SLOWNESS = {
    "compute on one rank": "if comm.rank == 1:\n"
    "    until = time.monotonic() + {slow}\n    while time.monotonic() < until: pass\n"
    "comm.barrier()",
    "a long load": "if comm.rank == 0: time.sleep({slow})\ncomm.bcast_obj(3)",
    "a paused process": "if comm.rank == 2:\n"
    "    subprocess.Popen(['sh', '-c', f'sleep {slow}; kill -CONT {{os.getpid()}}'])\n"
    "    os.kill(os.getpid(), signal.SIGSTOP)\ncomm.allreduce(np.ones(3))",
    "native code": "if comm.rank == 2: ctypes.PyDLL(None).usleep(int({slow} * 1e6))\n"
    "comm.barrier()",
    "a late sender": "if comm.rank == 3:\n    time.sleep({slow})\n"
    "    for r in range(3): comm.send_obj(r, r)\nelse: comm.recv_obj(3)",
}


@pytest.mark.parametrize("code", SLOWNESS.values(), ids=SLOWNESS.keys())
def test_what_is_slow_is_no_alarm(zoo: Notebook, code: str) -> None:
    said = Shown(" wait in ")
    ran = zoo.run("%%mn\n" + code.format(slow=SLOW), on_message=said, seconds=SLOW + 30)
    assert ran.ok, ran.error
    assert said.after < SLOW + 1  # it was shown as slow, and that is gone
    assert " wait in " not in ran.text
    works(zoo, RANKS)


UNEVEN = {
    "local steps": "for i in range(1 + comm.rank): time.sleep(0.5)\ncomm.barrier()",
    "pairs": "pair = comm.split(comm.rank // 2, comm.rank)\n"
    "for i in range(3 + 20 * (comm.rank // 2)):\n    pair.allreduce(np.ones(9)); time.sleep(0.1)",
    "one waits for a pair": "pair = comm.split(comm.rank // 2, comm.rank)\n"
    "if comm.rank > 1:\n    for i in range(25): pair.barrier(); time.sleep(0.1)\ncomm.barrier()",
    "ranks that end early": "if comm.rank == 0: time.sleep(2.5)\nif comm.rank == 1: 0",
    "a message that lies there": "if comm.rank == 0: comm.send_obj(1, 1)\n"
    "if comm.rank == 1: time.sleep(2.5); comm.recv_obj(0)",
    "a pipeline": "for i in range(12):\n    if comm.rank: x = comm.recv_obj(comm.rank - 1)\n"
    "    time.sleep(0.2)\n    if comm.rank < 3: comm.send_obj(i, comm.rank + 1)",
}


@pytest.mark.parametrize("code", UNEVEN.values(), ids=UNEVEN.keys())
def test_what_is_uneven_and_legal_is_no_alarm(zoo: Notebook, code: str) -> None:
    said = Shown(" wait")
    ran = zoo.run("%%mn\n" + code, on_message=said)
    assert ran.ok, ran.error
    assert said.after == float("inf")
    works(zoo, RANKS)


DEADLY = {
    "SIGKILL": ("os.kill(os.getpid(), signal.SIGKILL)", "killed by SIGKILL"),
    "SIGSEGV": ("ctypes.string_at(0)", "killed by SIGSEGV"),
    "SIGABRT": ("os.abort()", "killed by SIGABRT"),
}


@pytest.mark.parametrize(("call", "died"), DEADLY.values(), ids=DEADLY.keys())
def test_a_rank_that_dies(zoo: Notebook, call: str, died: str) -> None:
    zoo.check("%mn_restart")  # forgets the cells of the other tests
    zoo.check(SETUP)
    zoo.check("%mn kept = comm.rank")
    cell = zoo.next_cell()
    began = time.monotonic()
    ran = zoo.run(
        f"%%mn\nif comm.rank == 2:\n    time.sleep(1)\n    {call}\ncomm.barrier()",
        seconds=30,
    )
    assert time.monotonic() - began < SOON + 1
    assert ran.error_name == "ClusterError"
    assert re.search(rf"rank 2 \(pid \d+\) was {died}", ran.error), ran.error
    assert f"at {cell} line" in ran.error
    assert "%mn_restart starts 4 new ranks" in ran.error
    assert "replayed 2 cells" in zoo.check("%mn_restart --replay").text
    works(zoo, RANKS)


def test_a_rank_that_aborts_mpi(zoo: Notebook) -> None:
    zoo.check("%mn_restart")
    zoo.check(SETUP)
    ran = zoo.run(
        "%%mn\nfrom mpi4py import MPI\nif comm.rank == 2:\n    MPI.COMM_WORLD.Abort(3)\n"
        "    time.sleep(60)  # MPICH returns, and mpiexec ends all ranks a moment later\n"
        "comm.barrier()"
    )
    assert "a rank called MPI_Abort with code 3" in ran.error
    assert "killed by" not in ran.error
    zoo.check("%mn_restart")
    zoo.check(SETUP)
    zoo.check("%mn kept = comm.rank")
    works(zoo, RANKS)


def test_a_crash_in_the_first_moment_is_told_with_its_line(fresh: Notebook) -> None:
    """No heartbeat has told of the cell yet, and the last one was of an earlier cell."""
    fresh.check("%mn_start 2")
    fresh.check("%%mn\nimport os, time\nif comm.rank == 1: time.sleep(1)")
    cell = fresh.next_cell()
    ran = fresh.run("%%mn\n# one\n# two\nif comm.rank == 1:\n    os.abort()", seconds=30)
    assert f"was killed by SIGABRT at {cell} line 5" in ran.error
    assert f"was killed by SIGABRT at {cell} line 5" in fresh.run("%mn 1").error  # later too


def test_a_kill_in_the_first_moment_is_not_put_at_an_earlier_cell(fresh: Notebook) -> None:
    fresh.check("%mn_start 2")
    fresh.check("%%mn\nimport os, signal, time\nif comm.rank == 1: time.sleep(1)")
    cell = fresh.next_cell()
    ran = fresh.run("%%mn\nif comm.rank == 1: os.kill(os.getpid(), signal.SIGKILL)", seconds=30)
    assert "was killed by SIGKILL" in ran.error
    assert f"at {cell} line 2" in ran.error or " at cell " not in ran.error


def test_a_rank_that_goes_on_alone_is_shown(zoo: Notebook) -> None:
    cell = zoo.next_cell()
    shown = Shown(f"rank 2 sleeps at {cell} line 2; ranks 0, 1, 3 have finished the cell")
    ran = zoo.run("%%mn\nif comm.rank == 2: time.sleep(6)", on_message=shown, seconds=20)
    assert ran.ok, ran.error
    assert shown.after < SOON
    assert "have finished" not in ran.text
    works(zoo, RANKS)
