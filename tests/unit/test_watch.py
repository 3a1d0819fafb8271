"""Which process ended first, on real processes."""

import os
import socket
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest

from nbmn.cluster.processes import Watch
from nbmn.messages import RankInfo

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs pidfds")

KILLED = 9
RANK = """
import os, sys
from nbmn.engine.lifeline import lifeline
print(lifeline(), flush=True)
sys.stdin.readline()
os.closerange(3, lifeline() + 10)
print("closed", flush=True)
sys.stdin.readline()
"""


@contextmanager
def ranks(number, code=RANK):
    """Return processes that do what ranks do as they end, and what watches them."""
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(number)
    ]
    try:
        lines = [int(process.stdout.readline()) for process in started]
        host = socket.gethostname()
        yield (
            started,
            Watch(
                [
                    RankInfo(n, number, n, host, process.pid, "CPU", "", lifeline=line)
                    for n, (process, line) in enumerate(zip(started, lines, strict=True))
                ]
            ),
        )
    finally:
        for process in started:
            process.kill()
            process.communicate()


def left(watch):
    until = time.monotonic() + 20
    while watch.left_at is None:
        assert time.monotonic() < until
        time.sleep(0.01)
    return watch.left


def close_descriptors(process):
    process.stdin.write("\n")
    process.stdin.flush()
    assert process.stdout.readline() == "closed\n"


def test_the_first_is_who_closed_its_descriptors_first():
    """As a rank that is killed does, whereupon mpiexec kills the others, which end sooner."""
    with ranks(3) as (started, watch):
        close_descriptors(started[1])
        for other in (started[0], started[2]):
            other.kill()
            other.wait()
        started[1].kill()
        assert left(watch) == {1: KILLED}


def test_who_closes_descriptors_and_lives_has_not_ended():
    with ranks(2) as (started, watch):
        close_descriptors(started[0])
        started[1].kill()
        assert left(watch) == {1: KILLED}


def test_how_it_ended_is_known():
    with ranks(2) as (started, watch):
        started[0].stdin.write("\n\n")  # it goes to its end
        started[0].stdin.flush()
        assert left(watch) == {0: 0}


WITH_CHILD = """
import os, sys, time
from nbmn.engine.lifeline import lifeline
line = lifeline()
if not os.fork():
    time.sleep(60)
print(line, flush=True)
sys.stdin.readline()
"""


def test_a_child_that_lives_on_is_not_the_rank():
    with ranks(2, WITH_CHILD) as (started, watch):
        started[1].kill()
        assert left(watch) == {1: KILLED}


def test_children_of_children_keep_their_files():
    code = """
import os
from nbmn.engine.lifeline import lifeline
pipe = os.readlink(f"/proc/self/fd/{lifeline()}")
near = min(n for n in map(int, os.listdir("/proc/self/fd"))
           if os.path.exists(f"/proc/self/fd/{n}") and os.readlink(f"/proc/self/fd/{n}") == pipe)
assert near < os.open("/dev/null", os.O_RDONLY)
child = os.fork()
if not child:
    file = os.open("/dev/null", os.O_RDONLY)
    assert file == near  # the child has let go of it
    child = os.fork()
    if not child:
        os.fstat(file)
        os._exit(7)
_, status = os.waitpid(child, 0)
os._exit(os.waitstatus_to_exitcode(status))
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=30).returncode == 7
