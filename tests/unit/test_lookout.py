"""What a rank's reporter tells of the collectives its threads are in."""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, SimpleNamespace
from typing import Any

from nbmn.communicators import Entry
from nbmn.communicators.waiting import wait
from nbmn.engine.where import Lookout
from nbmn.records import Busy


def waits(link: int, number: int, peer: int | None = None) -> Any:
    earlier = number and 4
    entry = Entry(3, link, number, "x", 0, "", "<cell [1]>", 2, 1.0, None, peer, None, earlier)
    world = SimpleNamespace(
        recorder=SimpleNamespace(last=lambda thread: entry),
        links=lambda: [SimpleNamespace(code=7, members=(4, 2), uid=SimpleNamespace(number=3))],
        creation=lambda: (9, 2, (1, 3)),
    )
    lookout = Lookout(world)  # type: ignore[arg-type]
    told: list[Any] = []

    def arrived() -> bool:
        told.append(lookout.waits())
        return True

    wait(arrived)
    assert lookout.waits() is None  # it has all it needs, and reads it
    return told[0][3]


def test_ranks_are_told_as_those_of_the_world() -> None:
    assert (told := waits(7, 5)).members == (4, 2)
    assert (told.link, told.number, told.peer, told.made) == ("7", 5, None, 3)
    assert told.nth == 1
    assert waits(7, 0, peer=1).peer == 2


def test_a_rank_that_does_not_exist_is_no_error() -> None:
    assert waits(7, 0, peer=5).peer == 5


def test_while_a_communicator_is_made_only_its_ranks_take_part() -> None:
    told = waits(0, 0)
    assert (told.link, told.number, told.nth, told.members) == ("9", 2, 0, (1, 3))


# Threads beside the main one.


@contextmanager
def running(target: Callable[[], object]) -> Iterator[threading.Thread]:
    thread = threading.Thread(target=target, name="T", daemon=True)
    thread.start()
    try:
        yield thread
    finally:
        thread.join(10)
        assert not thread.is_alive()


def looked(entries: dict[int, Entry] | None = None) -> Lookout:
    known = {} if entries is None else entries
    recorder = SimpleNamespace(last=known.get, calls=known)
    world = SimpleNamespace(recorder=recorder, links=list, creation=lambda: (0, 0, ()))
    return Lookout(world)  # type: ignore[arg-type]


def seen(lookout: Lookout) -> list[Busy]:
    return [busy for busy in lookout.threads() if busy.thread == "T"]


def test_a_thread_of_the_users_counts_while_it_lives() -> None:
    inside, leave = threading.Event(), threading.Event()

    def work() -> None:
        inside.set()
        leave.wait(10)

    with running(work):
        assert inside.wait(10)
        (busy,) = seen(looked())
        assert busy.where.startswith("test_lookout.py line ")
        assert (busy.operation, busy.wait, busy.joined) == ("", None, False)
        leave.set()
    assert seen(looked()) == []


def test_threads_of_libraries_do_not_count() -> None:
    leave = threading.Event()
    with running(functools.partial(leave.wait, 10)):
        assert seen(looked()) == []
        leave.set()
    with concurrent.futures.ThreadPoolExecutor(1, "T") as pool:
        assert pool.submit(int).result() == 0
        assert [b for b in looked().threads() if b.thread.startswith("T")] == []


def test_a_timer_and_a_loop_may_yet_call_something() -> None:
    timer = threading.Timer(60, print)
    timer.name = "T"
    timer.start()
    assert [busy.thread for busy in seen(looked())] == ["T"]
    timer.cancel()
    timer.join(10)
    asleep = threading.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def sleep() -> None:
        loops.append(asyncio.get_running_loop())
        leave = asyncio.Event()
        leaves.append(leave)
        asleep.set()
        await leave.wait()

    leaves: list[asyncio.Event] = []
    with running(functools.partial(asyncio.run, sleep())):
        assert asleep.wait(10)
        assert [busy.thread for busy in seen(looked())] == ["T"]
        loops[0].call_soon_threadsafe(leaves[0].set)


def test_a_thread_that_waits_is_told_of_and_can_be_interrupted() -> None:
    entries: dict[int, Entry] = {}
    inside = threading.Event()
    ended: list[str] = []

    def collective() -> None:
        entries[threading.get_ident()] = Entry(
            3, 0, 0, "barrier", 0, "", "<cell [1]>", 2, 1.0, None
        )
        try:
            wait(lambda: inside.set() is not None, timeout=30)
        except KeyboardInterrupt:
            ended.append("interrupted")

    lookout = looked(entries)
    with running(collective):
        assert inside.wait(10)
        (busy,) = seen(lookout)
        assert (busy.operation, busy.where) == ("barrier", "cell [1] line 2")
        assert busy.wait is not None
        lookout.interrupt_threads()
    assert ended == ["interrupted"]


def test_the_thread_for_which_the_main_one_waits() -> None:
    leave = threading.Event()
    told: list[Busy] = []

    def watch() -> None:
        while not told or not told[-1].joined:
            told.extend(seen(lookout))
        leave.set()

    def work() -> None:
        leave.wait(10)

    lookout = looked()
    with running(work) as thread:
        (before,) = seen(lookout)
        assert not before.joined
        watcher = threading.Thread(target=watch)
        watcher.start()
        thread.join()
        watcher.join(10)
        assert not watcher.is_alive()
    assert told[-1].joined


def test_a_limited_wait_for_a_thread_ends_by_itself() -> None:
    leave = threading.Event()
    told: list[bool] = []

    def watch() -> None:
        while threading.Thread.join.__code__ not in [f.f_code for f in frames(main)]:
            pass
        told.append(seen(lookout)[0].joined)
        leave.set()

    def frames(thread: int) -> list[FrameType]:
        frame, found = sys._current_frames().get(thread), []
        while frame is not None:
            found.append(frame)
            frame = frame.f_back
        return found

    def work() -> None:
        leave.wait(10)

    lookout, main = looked(), threading.get_ident()
    with running(work) as thread:
        watcher = threading.Thread(target=watch)
        watcher.start()
        thread.join(10)
        watcher.join()
    assert told == [False]
