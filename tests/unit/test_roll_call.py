"""Ranks that end while they start."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import psutil
import pytest

from nbmn.cluster.processes import Headcount, count_ranks
from nbmn.cluster.starting import RollCall


def told(counts: list[int], ended: int = 0) -> list[bool]:
    roll = RollCall(2)
    return [
        roll.is_short(10.0 + second, lambda here=here: Headcount(here, ended))
        for second, here in enumerate(counts)
    ]


def test_ranks_that_come_and_stay() -> None:
    assert not any(told([0, 1, 1, 2, 3, 2, 2]))


def test_one_that_ends() -> None:
    assert told([0, 2, 1, 1]) == [False, False, False, True]


def test_one_that_had_ended_before_the_first_look() -> None:
    assert told([1, 1], ended=1) == [False, True]


def test_one_look_is_not_enough() -> None:
    assert not any(told([2, 1, 2, 1, 2]))


def test_ranks_on_other_hosts() -> None:
    assert not any(told([0, 0, 0, 0]))


def test_it_counts_once_a_second() -> None:
    roll, counts = RollCall(2), []
    for tenth in range(100):
        roll.is_short(10 + tenth / 10, lambda: counts.append(2) or Headcount(2, 0))
    assert len(counts) == 10


MPIEXEC = """
import os, subprocess, sys
def end():
    child = subprocess.Popen([sys.executable, "-c", "", "nbmn.engine"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    return child  # at its end, as long as nobody asks how it ended
child = end()
if len(sys.argv) < 2:
    other = end()
    rank = subprocess.Popen([sys.executable, "-c", sys.orig_argv[2], "nbmn.engine"])
else:
    print(flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="zombies are told from others on Linux")
def test_ranks_that_nobody_took_note_of_are_counted() -> None:
    process = psutil.Popen(
        [sys.executable, "-c", MPIEXEC], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        process.stdout.readline()
        launcher = SimpleNamespace(process=process)
        cluster = SimpleNamespace(controller=None, engines={"set": launcher})
        assert count_ranks(cluster) == Headcount(alive=1, ended=2)
    finally:
        process.stdin.close()
        process.wait(20)
        process.stdout.close()
