"""What the system and the watchdog tell of a process, and how stacks are read and shown."""

from __future__ import annotations

import mmap
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from nbmn.cluster.memory import Memory
from nbmn.communicators import Entry
from nbmn.debug.probe import (
    Stacks,
    entries_since,
    parse_stack,
    process_state,
    takes_signals,
    user_line,
)
from nbmn.debug.stacks import Place, fold, render_html, render_text
from nbmn.debug.states import RankState
from nbmn.engine.blackbox import SIGNAL
from nbmn.engine.syscalls import _text_at, blocked_in
from nbmn.records import Frame, Wait

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


def until(said: Callable[[], str], expected: str) -> None:
    deadline = time.monotonic() + 10
    while said() != expected:
        assert time.monotonic() < deadline, f"{said()!r} is not {expected!r}"
        time.sleep(0.005)


def blocked(call: Callable[[], object], release: Callable[[], object], expected: str) -> None:
    """A thread in ``call`` is said to do what is expected."""
    thread = threading.Thread(target=call)
    thread.start()
    try:
        until(lambda: blocked_in(thread.native_id or 0), expected)
    finally:
        release()
        thread.join()


@linux
def test_what_a_thread_is_blocked_in(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    blocked(lambda: os.read(reading, 1), lambda: os.write(writing, b"x"), "reads a pipe")
    one, other = socket.socketpair()
    blocked(lambda: one.recv(1), lambda: other.send(b"x"), "reads a socket")
    fifo = str(tmp_path / "Ω fifo")
    os.mkfifo(fifo)
    opened: list[int] = []
    blocked(
        lambda: opened.append(os.open(fifo, os.O_RDONLY)),
        lambda: os.open(fifo, os.O_WRONLY),
        f"opens {fifo}",
    )
    descriptor = os.open(fifo, os.O_RDWR)
    blocked(lambda: os.read(opened[0], 1), lambda: os.write(descriptor, b"x"), f"reads {fifo}")
    blocked(lambda: time.sleep(0.3), lambda: None, "sleeps")
    child = subprocess.Popen(["sleep", "60"])
    blocked(lambda: child.wait(), child.kill, "waits for a child process")


@linux
@pytest.mark.parametrize("before_the_page_ends", [0, 1, 5, 6, 7, 100])
def test_a_path_may_begin_on_one_page_and_end_on_the_next(before_the_page_ends: int) -> None:
    memory = mmap.mmap(-1, 2 * mmap.PAGESIZE)
    address = np.frombuffer(memory, np.uint8).ctypes.data
    at = mmap.PAGESIZE - before_the_page_ends
    memory[at : at + 7] = b"a/path\0"
    assert _text_at(address + at) == "a/path"
    assert _text_at(8) == ""


@linux
def test_waiting_for_a_lock_is_not_told() -> None:
    event = threading.Event()
    blocked(event.wait, event.set, "")
    assert blocked_in(1) == ""  # of another process


@linux
def test_process_states() -> None:
    child = subprocess.Popen(["sleep", "60"])
    try:
        until(lambda: process_state(child.pid), "S")
        child.send_signal(19)
        until(lambda: process_state(child.pid), "T")
    finally:
        child.kill()
    until(lambda: process_state(child.pid), "Z")
    child.wait()
    assert process_state(child.pid) == ""


SILENT = """
import ctypes, os, sys, time
from nbmn.engine.blackbox import install
libc = ctypes.PyDLL(None)
reading, writing = os.pipe()
def hold():
    print(install(), flush=True)
    {call}
exec(compile("\\n\\nhold()", "<cell [7]>", "exec"))
"""


@linux
@pytest.mark.parametrize(
    ("call", "may_be_asked"),
    [
        ("libc.read(reading, ctypes.create_string_buffer(1), 1)", True),
        ("libc.usleep(60_000_000)", False),
        ("sum(range(10**10))", True),
    ],
)
def test_a_process_whose_interpreter_is_held_writes_its_stack(
    call: str, may_be_asked: bool
) -> None:
    code = SILENT.format(call=call)
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    stacks = Stacks()
    try:
        assert child.stdout is not None
        descriptor = int(child.stdout.readline())
        time.sleep(0.05)
        assert takes_signals(child.pid) is may_be_asked
        frames = stacks.once(child.pid, descriptor, 1.0)
        assert bool(frames) is may_be_asked
        assert stacks.ask(child.pid, descriptor) == frames
        assert stacks.once(child.pid, descriptor, 1.0) == frames
        if may_be_asked:
            assert user_line(frames) == "cell [7] line 3"
            assert [frame.function for frame in frames] == ["<module>", "hold"]
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(0.2)  # it goes on with what it did
    finally:
        child.kill()
        child.wait()
    assert stacks.ask(child.pid, descriptor) == ()


@linux
def test_a_process_that_does_not_expect_the_signal_is_left_alone() -> None:
    child = subprocess.Popen(["sleep", "60"])
    try:
        assert Stacks().ask(child.pid, 1) == ()
        assert Stacks().ask(child.pid, -1) == ()
        assert child.poll() is None
    finally:
        child.kill()
        child.wait()


@linux
def test_a_file_of_another_process_is_left_alone(tmp_path: Path) -> None:
    """Its id may be that of a rank which has ended."""
    kept = tmp_path / "kept"
    kept.write_text("kept")
    code = (
        f"import faulthandler, time; file = open({str(kept)!r}, 'r+')\n"
        f"faulthandler.register({SIGNAL}, file=file)\n"
        "print(file.fileno(), flush=True)\ntime.sleep(60)"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        assert Stacks().ask(child.pid, int(child.stdout.readline())) == ()
        assert kept.read_text() == "kept"
    finally:
        child.kill()
        child.wait()


DUMP = """\
Current thread 0x00007f8b [python] (most recent call first):
  File "/x/lib/thing.py", line 3 in read
  File "<cell [2]>", line 5 in load
  File "<cell [3]>", line 4 in <module>
  File "/x/IPython/shell.py", line 1 in run_code
"""


def test_the_cells_part_of_a_stack_is_taken() -> None:
    assert parse_stack(DUMP) == (
        Frame("cell [3] line 4", "<module>"),
        Frame("cell [2] line 5", "load"),
        Frame("thing.py line 3", "read"),
    )
    assert user_line(parse_stack(DUMP)) == "cell [2] line 5"
    assert parse_stack("") == ()


def entry(sequence: int, begin: float, line: int = 3, operation: str = "allreduce") -> Entry:
    return Entry(sequence, 1, sequence, operation, 0, "", "<cell [1]>", line, begin, begin)


def test_calls_are_counted_from_the_cells_beginning() -> None:
    entries = [entry(1, 1.0), entry(2, 5.0), entry(3, 6.0, 4), entry(4, 7.0, 3, "bcast")]
    told = entries_since(entries, 2.0)
    assert told == [entry for entry in entries if entry.begin >= 2.0]
    assert 0 < len(told) < len(entries)
    assert entries_since([], 2.0) == []
    assert entries_since(entries[1:], 2.0) is None  # older ones are gone


def test_running_out_of_memory(tmp_path: Path) -> None:
    source = tmp_path / "vmstat"
    source.write_text("nr_free 3\noom_kill 2\n")
    memory = Memory(source)
    assert memory.ran_out() is False
    source.write_text("nr_free 3\noom_kill 3\n")
    assert memory.ran_out() is True
    assert Memory(tmp_path / "none").ran_out() is None
    source.write_text("nr_free 3\n")
    assert memory.ran_out() is None


def test_stacks_as_a_person_reads_them() -> None:
    frames = (Frame("cell [1] line 2", "<module>", "train(a < b)"), Frame("x.py line 3", "train"))
    wait = Wait(7, "w", 418, (0, 1, 2, 3), nth=18)
    places = [
        Place(RankState(r, "waiting", "cell [1] line 2", 1.0 + r, "allreduce", wait), frames)
        for r in (3, 0, 2)
    ]
    places.append(Place(RankState(1, "running", seconds=5.0, blocked="sleeps"), frames[:1]))
    places.append(Place(RankState(4, "outside")))
    places.append(Place(RankState(5, "silent", seconds=4.0, process="T"), pid=77))
    places.append(Place(RankState(6, "silent", "cell [1] line 2", 4.0, process="S"), pid=78))
    groups = fold(places)
    assert render_text(groups) == (
        "ranks 0, 2, 3: in allreduce #18 (cell [1] line 2) for 4.0 s\n"
        "  cell [1] line 2 in <module>: train(a < b)\n"
        "  x.py line 3 in train\n"
        "rank 1: in the cell for 5.0 s, sleeps\n"
        "  cell [1] line 2 in <module>: train(a < b)\n"
        "rank 4: idle\n"
        "rank 5: is stopped by a signal; kill -CONT 77 lets it go on\n"
        "rank 6: is silent for 4 s: native code holds the interpreter at cell [1] line 2; no "
        "stack: the signal that asks for it would cut short the system call it is in"
    )
    page = render_html(groups)
    assert "train(a &lt; b)" in page
    assert "&lt;module&gt;" in page
    assert page.count('nbmn-stack"') == 5
