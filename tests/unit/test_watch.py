"""Which process ended first, on real processes."""

import os
import select
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
os.closerange(3, 2000)
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
import os, sys
from nbmn.engine.lifeline import lifeline
line = lifeline()
if os.fork():
    print(line, flush=True)
sys.stdin.readline()  # the child until the test is over
"""


def test_a_child_that_lives_on_is_not_the_rank():
    with ranks(2, WITH_CHILD) as (started, watch):
        started[1].kill()
        assert left(watch) == {1: KILLED}


WITH_FILES = """
import os, signal, sys, threading
from nbmn.engine.lifeline import lifeline
pipe = lifeline()
for _ in range(500):
    os.open("/dev/null", os.O_RDONLY)
threading.Thread(target=signal.pause, daemon=True).start()
print(pipe, flush=True)
sys.stdin.readline()
{end}
"""


@pytest.mark.parametrize(
    "end", ["os.kill(os.getpid(), signal.SIGTERM)", "os._exit(3)", "os.kill(os.getpid(), 9)"]
)
def test_a_rank_lets_go_of_the_notebook_before_mpiexec(end):
    """In the order in which the kernel closes files; the line is opened as mpiexec's is."""
    for _ in range(2):
        line, far = os.pipe()
        process = subprocess.Popen(
            [sys.executable, "-c", WITH_FILES.format(end=end)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=[far],
        )
        os.close(far)
        with process, select.epoll() as events:
            pipe = os.open(
                f"/proc/{process.pid}/fd/{int(process.stdout.readline())}",
                os.O_RDONLY | os.O_NONBLOCK,
            )
            for end_of_a_pipe in (line, pipe):
                events.register(end_of_a_pipe, select.EPOLLHUP)
            process.communicate("\n", timeout=20)
            ((first, _),) = events.poll(maxevents=1)
        os.close(line)
        os.close(pipe)
        assert first == pipe


def test_children_of_children_keep_their_files():
    code = """
import os
from nbmn.engine.lifeline import lifeline
pipe = os.readlink(f"/proc/self/fd/{lifeline()}")
near = max(n for n in map(int, os.listdir("/proc/self/fd"))
           if os.path.exists(f"/proc/self/fd/{n}") and os.readlink(f"/proc/self/fd/{n}") == pipe)
child = os.fork()
if not child:
    assert not os.path.exists(f"/proc/self/fd/{near}")  # the child has let go of it
    file = os.dup2(os.open("/dev/null", os.O_RDONLY), near)
    child = os.fork()
    if not child:
        os.fstat(file)
        os._exit(7)
_, status = os.waitpid(child, 0)
os._exit(os.waitstatus_to_exitcode(status))
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=30).returncode == 7
