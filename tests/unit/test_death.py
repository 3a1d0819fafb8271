"""Who died of what."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys

import pytest

from nbmn.cluster.death import Fate, cause, fates
from nbmn.cluster.wait_status import first_to_go, status_of
from nbmn.messages import RankInfo

RANKS = [RankInfo(rank, 2, rank, "node", 100 + rank, "CPU", "") for rank in (0, 1)]

MPICH = """\
noise
===================================================================================
=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES
=   PID {pid} RUNNING AT node
=   EXIT CODE: {code}
=   CLEANING UP REMAINING PROCESSES
=   YOU CAN IGNORE THE BELOW CLEANUP MESSAGES
===================================================================================
"""
BY_SIGNAL = "YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Killed (signal 9)\n"
SEGMENT = "YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Segmentation fault (signal 11)\n"
OPEN_MPI = """\
--------------------------------------------------------------------------
prterun noticed that process rank 1 with PID 101 on node node exited on
signal 11 (Segmentation fault).
--------------------------------------------------------------------------
"""
OPEN_MPI_EXIT = """\
prterun has exited due to process rank 1 with PID 101 on node node exiting
improperly. There are three reasons this could occur:
"""


@pytest.mark.parametrize(
    ("logs", "left", "code", "words"),
    [
        (
            MPICH.format(pid=101, code=9) + BY_SIGNAL,
            (),
            9,
            "rank 1 (pid 101) was killed by SIGKILL",
        ),
        # mpiexec may blame a rank that it ended itself.
        (MPICH.format(pid=100, code=9) + BY_SIGNAL, (1,), 9, "rank 1 (pid 101) was killed by SIG"),
        (
            MPICH.format(pid=100, code=9) + SEGMENT,
            (1,),
            11,
            "rank 1 (pid 101) was killed by SIGSEGV",
        ),
        (MPICH.format(pid=101, code=9) + BY_SIGNAL, (0, 1), 9, "rank 1 (pid 101) was killed"),
        (MPICH.format(pid=101, code=3), (), 3, "rank 1 (pid 101) exited with code 3"),
        (MPICH.format(pid=77, code=9) + BY_SIGNAL, (), 9, "the process 77 was killed by SIGKILL"),
        (OPEN_MPI, (), 139, "rank 1 (pid 101) was killed by SIGSEGV"),
        (OPEN_MPI_EXIT, (1,), 1, "rank 1 (pid 101) exited with code 0"),
        ("", (1,), 3, "rank 1 (pid 101) exited with code 3"),
        ("", (1,), None, "rank 1 exited, as by os._exit(0)"),
        ("", (0, 1), 3, "ranks 0, 1 (pid 100, 101) exited with code 3"),
        ("", (), 0, "the ranks have ended"),
    ],
)
def test_cause(logs: str, left: tuple[int, ...], code: int | None, words: str) -> None:
    assert cause(logs, RANKS, dict.fromkeys(left), code).startswith(words)


BY_MPIEXEC = Fate("ended", "by mpiexec")


@pytest.mark.parametrize(
    ("logs", "left", "code", "found"),
    [
        ("", {1: 9}, 137, {0: BY_MPIEXEC, 1: Fate("killed", "by SIGKILL")}),
        # mpiexec may blame a rank that it ended itself.
        (
            MPICH.format(pid=100, code=9) + SEGMENT,
            {1: None},
            11,
            {0: BY_MPIEXEC, 1: Fate("killed", "by SIGSEGV")},
        ),
        ("", {0: 3 << 8}, 3, {0: Fate("exited", "with code 3"), 1: BY_MPIEXEC}),
        (OPEN_MPI, {}, 1, {0: BY_MPIEXEC, 1: Fate("killed", "by SIGSEGV")}),
        # Nobody tells which of them was the first.
        ("", {0: None, 1: None}, 1, dict.fromkeys((0, 1), Fate("ended"))),
        # mpiexec does not mind, and ends nobody.
        ("", {1: None}, None, {1: Fate("exited", "with code 0")}),
        ("", {}, None, {}),
        ("", {}, 1, dict.fromkeys((0, 1), BY_MPIEXEC)),  # MPI_Abort
    ],
)
def test_how_each_rank_ended(logs, left, code, found):
    assert fates(logs, RANKS, left, code) == found


def test_the_kernel_may_say_that_memory_ran_out() -> None:
    logs = MPICH.format(pid=101, code=9) + BY_SIGNAL
    said = cause(logs, RANKS, out_of_memory=True)
    assert said.startswith(
        "rank 1 (pid 101) was killed by SIGKILL, probably out of memory: the kernel"
    )
    assert "memory" not in cause(logs, RANKS, out_of_memory=False)


def test_the_last_line_is_told() -> None:
    lines = {0: "cell [1] line 2", 1: "cell [1] line 3"}
    logs = MPICH.format(pid=101, code=9) + BY_SIGNAL
    assert "SIGKILL at cell [1] line 3, and" in cause(logs, RANKS, {}, 9, lines, False)
    assert "code 3 at cell [1] line 3, and" in cause("", RANKS, {1: None}, 3, lines)
    assert "cell" not in cause("", RANKS, {0: None, 1: None}, 3, lines)


def test_memory_is_hinted_at_for_sigkill_only() -> None:
    assert "memory" in cause(MPICH.format(pid=101, code=9) + BY_SIGNAL, RANKS)
    assert "memory" not in cause(OPEN_MPI, RANKS)


EXITED_3, KILLED = 3 << 8, 9
KERNEL = tuple(map(int, re.findall(r"\d+", os.uname().release)[:2]))


@pytest.mark.parametrize(
    ("ended", "statuses", "left"),
    [
        ([], {0: None, 1: None}, {}),
        ([1], {0: None, 1: None}, {1: None}),
        ([1], {0: KILLED, 1: None}, {1: None}),
        ([1], {0: KILLED, 1: KILLED}, {1: KILLED}),
        # Killed by mpiexec, and at its end before the one that made it do so.
        ([0], {0: KILLED, 1: EXITED_3}, {1: EXITED_3}),
        ([0], {0: None, 1: 0}, {1: 0}),
        ([0, 1], {0: KILLED, 1: KILLED}, {0: KILLED, 1: KILLED}),
    ],
)
def test_who_went_first(ended, statuses, left):
    assert first_to_go(ended, statuses) == left


@pytest.mark.parametrize(
    ("code", "status"),
    [("import os; os._exit(3)", EXITED_3), ("import os; os.kill(os.getpid(), 9)", KILLED)],
)
def test_how_a_process_ended(code, status):
    with subprocess.Popen([sys.executable, "-c", code]) as process:
        descriptor = os.pidfd_open(process.pid)
        assert select.select([descriptor], [], [], 10)[0]
        assert status_of(descriptor) == status  # not waited for yet
        process.wait()
        # Kernels know it from 6.15 on; the older ones must not make one up.
        assert status_of(descriptor) == (status if KERNEL >= (6, 15) else None)
        os.close(descriptor)


def test_what_the_system_knows_counts_more_than_what_mpiexec_says():
    logs = MPICH.format(pid=100, code=9) + BY_SIGNAL
    assert cause(logs, RANKS, {1: EXITED_3}, 9).startswith("rank 1 (pid 101) exited with code 3")
    assert cause("", RANKS, {1: KILLED}, 9).startswith("rank 1 (pid 101) was killed by SIGKILL")


@pytest.mark.parametrize("left", [{1: KILLED}, {0: KILLED, 1: KILLED}, {}])
def test_who_aborted_is_not_made_up(left: dict[int, int | None]) -> None:
    """mpiexec kills all ranks then, in any order, and accuses none."""
    assert cause("", RANKS, left, 3).startswith("a rank called MPI_Abort with code 3")
    assert {fate.how for fate in fates("", RANKS, left, 3).values()} == {"ended"}
    assert "MPI_Abort" not in cause("", RANKS, left, 128 + signal.SIGTERM)  # mpiexec itself ended


def test_a_process_that_lives_has_no_status():
    descriptor = os.pidfd_open(os.getpid())
    assert status_of(descriptor) is None
    os.close(descriptor)
