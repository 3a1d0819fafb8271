"""Where this rank's threads are, as its reporter thread sees it. Everything here is local."""

from __future__ import annotations

import ctypes
import linecache
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from concurrent.futures import thread as pools
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

from nbmn.communicators.callers import Origin, origin
from nbmn.communicators.interrupts import HeldInterrupt
from nbmn.communicators.link import Link
from nbmn.communicators.waiting import wait
from nbmn.engine.lines import cell_label, describe
from nbmn.engine.mpi_calls import mpi_call
from nbmn.engine.syscalls import blocked_in
from nbmn.records import Busy, Frame, Wait

if TYPE_CHECKING:
    from nbmn.communicators.recordings import Entry
    from nbmn.communicators.world import World

DEEPEST = 60
"""Frames of a stack that travel: the innermost."""
_WAITS = (wait.__code__, Link.wait.__code__)
_NBMN = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


class Lookout:
    """Looks at the main thread from another, and at further threads of the user's.

    Parameters
    ----------
    world
        Its communicators.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        main = threading.main_thread()
        self._thread = main.ident or 0
        self._native = main.native_id or 0

    def waits(self) -> tuple[str, str, float, Wait] | None:
        """What it waits in: operation, line, seconds and more; None if it waits for no rank.

        In a collective it also works: to read an object may take seconds, and needs nobody.
        """
        entry = self._waits_in(self._thread)
        if entry is None:
            return None
        place = describe(entry.file, entry.line)
        return entry.operation, place, time.monotonic() - entry.begin, self._wait(entry)

    def threads(self) -> tuple[Busy, ...]:
        """Other threads that wait for ranks, or run the user's code, and so may call anything.

        Not those of libraries: iterators that read ahead, averaging in the background, the
        kernel's own, and the idle ones of a pool, which call only what the user has them call.
        """
        awaited = awaits(_stack(self._thread))
        return tuple(busy for thread in self._others() if (busy := self._busy(thread, awaited)))

    def takes_interrupts(self) -> bool:
        """Whether SIGINT raises KeyboardInterrupt in the main thread, as far as Python knows."""
        return signal.getsignal(signal.SIGINT) is signal.default_int_handler or self._holds()

    def _holds(self) -> bool:
        """Whether the main thread is where half a step would lose track, and will see SIGINT."""
        return isinstance(getattr(signal.getsignal(signal.SIGINT), "__self__", None), HeldInterrupt)

    def interrupt_threads(self, main: bool = False) -> None:
        """Raise KeyboardInterrupt in other threads that wait for ranks: no signal reaches them.

        Parameters
        ----------
        main
            Also in the main thread, where it waits for ranks.
        """
        idents = [thread.ident or 0 for thread in self._others()]
        if main and not self._holds():
            idents.append(self._thread)
        for ident in idents:
            if self._waits_in(ident) is not None:
                number = ctypes.c_ulong(ident)
                error = ctypes.py_object(KeyboardInterrupt)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(number, error)

    def _others(self) -> list[threading.Thread]:
        here = threading.get_ident()
        return [t for t in threading.enumerate() if t.ident not in (self._thread, here)]

    def _busy(self, thread: threading.Thread, awaited: object) -> Busy | None:
        frames = _stack(thread.ident or 0)
        joined = awaited is not None and awaited in (thread, _computes(frames))
        entry = self._waits_in(thread.ident or 0)
        if entry is not None:
            place, seconds = describe(entry.file, entry.line), time.monotonic() - entry.begin
            wait = self._wait(entry)
            return Busy(thread.name, place, entry.operation, seconds, wait, joined, talks=True)
        talks = thread.ident in self._world.recorder.calls
        users = [frame for frame in frames if origin(frame) is Origin.OWN]
        if users:
            place = describe(users[0].f_code.co_filename, users[0].f_lineno or 0)
            return Busy(thread.name, place, joined=joined, talks=talks)
        if not _may_call(thread, frames):
            return None
        return Busy(thread.name, joined=joined, talks=talks)

    def _waits_in(self, thread: int) -> Entry | None:
        """The operation in which a thread waits for other ranks."""
        entry = self._world.recorder.last(thread)
        if entry is None or entry.end is not None:
            return None
        waits = any(frame.f_code is code for frame in _stack(thread) for code in _WAITS)
        return entry if waits else None

    def _wait(self, entry: Entry) -> Wait:
        made = 0
        if entry.link:
            code, number, members = entry.link, entry.number, ()
            for link in self._world.links():
                if link.code == code:
                    members, made = link.members, link.uid.number
        else:
            code, number, members = self._world.creation()
        peer = entry.peer
        if peer is not None and peer < len(members):  # else it will be refused
            peer = members[peer]
        return Wait(
            entry.sequence,
            str(code) if code else "",
            number,
            members,
            peer,
            entry.tag,
            entry.nbytes,
            entry.dtype,
            made,
            entry.nth,
        )

    def begun(self) -> dict[str, int]:
        """How many collectives were begun on each communicator."""
        return {str(code): count for code, count in self._world.begun().items()}

    def line(self) -> str:
        """The innermost line of a cell; empty before and after the cell's own code."""
        for frame, line in self._frames():
            if cell_label(frame.f_code.co_filename):
                return describe(frame.f_code.co_filename, line)
        return ""

    def blocked(self) -> str:
        """What it waits for: MPI, where the user's code calls that itself, or the system, such as
        ``reads /data/train.bin``; often nothing."""
        innermost = sys._current_frames().get(self._thread)
        return mpi_call(innermost, sure=True) or blocked_in(self._native) or mpi_call(innermost)

    def stack(self) -> tuple[Frame, ...]:
        """Its frames from the cell on, the outermost first, without nbmn's own innermost ones."""
        frames = self._frames()
        while frames and frames[0][0].f_code.co_filename.startswith(_NBMN):
            frames.pop(0)
        own = [i for i, (frame, _) in enumerate(frames) if cell_label(frame.f_code.co_filename)]
        frames = frames[: own[-1] + 1] if own else []
        return tuple(_frame(*place) for place in reversed(frames[:DEEPEST]))

    def _frames(self) -> list[tuple[FrameType, int]]:
        """Frames and the lines they have come to, the innermost first."""
        return [(frame, frame.f_lineno or 0) for frame in _stack(self._thread)]


def _stack(thread: int) -> list[FrameType]:
    """A thread's frames, the innermost first."""
    frames = []
    frame = sys._current_frames().get(thread)
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    return frames


def awaits(frames: Sequence[FrameType]) -> threading.Thread | Future[Any] | None:
    """The thread, or the result of a pool's thread, without which another, with these frames,
    cannot go on."""
    codes = (threading.Thread.join.__code__, Future.result.__code__)
    for frame in frames[:2]:  # what they call to wait differs from one Python to the next
        if frame.f_code in codes and frame.f_locals.get("timeout") is None:
            return frame.f_locals.get("self")
    return None


def _computes(frames: Sequence[FrameType]) -> Future[Any] | None:
    """The result at which a pool's thread is at work."""
    for frame in frames:
        if frame.f_code is _pool_runs():
            return getattr(frame.f_locals.get("self"), "future", None)
    return None


def _pool_runs() -> CodeType | None:
    """What runs on a pool's thread; no public name leads to it (as of Python 3.13)."""
    item = getattr(pools, "_WorkItem", None)
    return None if item is None else item.run.__code__


def _may_call(thread: threading.Thread, frames: Sequence[FrameType]) -> bool:
    """Whether a thread without a line of the user's comes to one by itself: a timer, a loop."""
    if isinstance(thread, threading.Timer):
        return True
    alone = all(origin(frame) is Origin.LIBRARY for frame in frames)
    return alone and any(frame.f_globals.get("__name__") == "asyncio.runners" for frame in frames)


def _frame(frame: FrameType, line: int) -> Frame:
    code = frame.f_code
    source = linecache.getline(code.co_filename, line, frame.f_globals).strip()
    return Frame(describe(code.co_filename, line), code.co_name, source)
