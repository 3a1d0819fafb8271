"""Whether the notebook still lives."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import psutil

from nbmn.parent import VARIABLE, Parent, this_process


def test_it_travels_as_text() -> None:
    parent = Parent("host/with/slashes", 12, 1.25)
    assert Parent.decode(parent.encode()) == parent


def test_alive_dead_and_a_reused_pid() -> None:
    me = this_process()
    assert me.is_local
    assert me.is_alive()
    assert not replace(me, started=me.started - 100).is_alive()
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    parent = Parent(me.host, child.pid, psutil.Process(child.pid).create_time())
    assert parent.is_alive()
    child.kill()
    psutil.wait_procs([], 0)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not parent.is_alive()  # a zombie is dead
    child.wait()
    assert not parent.is_alive()


def test_a_child_ends_with_its_parent() -> None:
    code = (
        "from nbmn.parent import watch_from_environment as w\n"
        "import time; w(); print('up', flush=True); time.sleep(60)"
    )
    middle = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    parent = Parent(this_process().host, middle.pid, psutil.Process(middle.pid).create_time())
    child = subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, VARIABLE: parent.encode()},
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"up\n"
    assert child.poll() is None
    middle.kill()
    middle.wait()
    assert child.wait(timeout=10) == 1
