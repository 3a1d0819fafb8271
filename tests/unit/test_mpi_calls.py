"""Which of mpi4py's calls a thread is in, told by its line: mpi4py itself is not needed."""

from __future__ import annotations

import linecache
import sys
import threading
import time
import types
import warnings
import weakref
from typing import Any

import pytest

from nbmn.engine.mpi_calls import LONGEST, mpi_call


class Comm:
    """Stands for mpi4py's, whose calls have no frames; its C function is a lock's."""

    def __init__(self, lock: Any) -> None:
        self.Barrier = self.Recv = self.recv = lock.acquire


Comm.__module__ = "mpi4py.MPI"


class Own:
    def __init__(self, comm: Comm) -> None:
        self.comm = comm


def stands(code: str, sure: bool = False, **names: Any) -> str:
    """What is told of a thread that waits in a C function called there."""
    lock = threading.Lock()
    lock.acquire()
    world = Comm(lock)
    module = types.ModuleType("mpi4py.MPI")
    module.COMM_WORLD, module.lock = world, lock  # type: ignore[attr-defined]
    own = Own(world)
    file = "<cell [3]>"
    linecache.cache[file] = (len(code), None, code.splitlines(True), file)
    there = {"MPI": module, "world": world, "own": own, "acquire": lock.acquire, **names}
    thread = threading.Thread(target=lambda: exec(compile(code, file, "exec"), there), daemon=True)
    thread.start()
    said, until = "", time.monotonic() + 5
    while not said and thread.is_alive() and time.monotonic() < until:
        frame = sys._current_frames().get(thread.ident or 0)
        if frame is not None and frame.f_code.co_filename == file:
            said = mpi_call(frame, sure=sure)
        thread.join(0.005)
    lock.release()
    thread.join(10)
    assert not thread.is_alive()
    return said


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("MPI.COMM_WORLD.Barrier()", "calls MPI.COMM_WORLD.Barrier()"),
        ("x = 1\ny = [world.recv(timeout=5), 3]", "calls world.recv(timeout=5)"),
        ("if own.comm.Recv(True, 9): pass", "calls own.comm.Recv(True, 9)"),
        ("def f(c):\n  é = 'é'; c.Barrier()\nf(world)", "calls c.Barrier()"),
        ("def f(c): return c.recv(True, 5)\nf(world)", "calls c.recv(True, 5)"),
        ("def f(): MPI.COMM_WORLD.Barrier()\nf()", "calls MPI.COMM_WORLD.Barrier()"),
        ("world.Recv(\n    True,\n    5,\n)", "calls world.Recv( True, 5, )"),
    ],
)
def test_the_call_is_told_as_it_is_written(code: str, said: str) -> None:
    assert stands(code) == said


def test_what_is_told_by_a_name_in_a_function_is_not_sure() -> None:
    assert stands("def f(c): return c.recv(True, 0.3)\nf(world)", sure=True) == ""
    assert stands("def f(): MPI.COMM_WORLD.Barrier()\nf()", sure=True)


def test_a_long_call_is_cut() -> None:
    said = stands(f"world.recv(timeout={'1 + ' * 30}1)")
    assert len(said) == len("calls …") + LONGEST


@pytest.mark.parametrize(
    "code",
    [
        "acquire(True, 0.3)",
        "def f(lock): lock.acquire(True, 0.3)\nf(MPI.lock)",
        "box.lock.acquire(True, 0.3)",
    ],
)
def test_nothing_else_is_told(code: str) -> None:
    box = types.SimpleNamespace(lock=threading.Lock())
    box.lock.acquire()
    assert stands(code, box=box) == ""


def test_python_does_not_warn_again_of_what_is_written() -> None:
    lock = threading.Lock()
    lock.acquire()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert stands("lock.acquire(True, len('\\d') / 8)", lock=lock) == ""
    assert {warning.filename for warning in caught} <= {"<cell [3]>"}


def test_a_property_of_the_users_is_not_asked() -> None:
    asked: list[str] = []

    class Asks:
        @property
        def comm(self) -> Comm:
            asked.append("by the call itself")
            lock = threading.Lock()
            lock.acquire()
            return Comm(lock)

    assert stands("asks.comm.recv(True, 0.3)", asks=Asks()) == ""
    assert asked == ["by the call itself"]


def test_an_object_is_not_asked_for_its_class_or_dictionary() -> None:
    asked: list[str] = []

    class Asks:
        def __getattribute__(self, name: str) -> Any:
            asked.append(name)
            return lambda *_: threading.Event().wait(0.3)

    assert stands("asks.lock(True)\nasks.lock(True)", asks=Asks()) == ""
    assert asked == ["lock", "lock"]


def test_nothing_is_told_of_no_frame() -> None:
    assert mpi_call(None) == ""


class Data:
    """Something large."""


def test_a_look_keeps_nothing_in_memory() -> None:
    def f(calls: Any) -> object:
        data = Data()
        alive = weakref.ref(data)
        calls.mpi_call(sys._getframe())
        del data
        return alive()

    assert f(sys.modules[mpi_call.__module__]) is None
