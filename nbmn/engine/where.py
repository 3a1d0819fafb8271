"""Where this rank's main thread is, as its reporter thread sees it. Everything here is local."""

from __future__ import annotations

import linecache
import os
import sys
import threading
import time
from types import FrameType
from typing import TYPE_CHECKING

from nbmn.communicators.link import Link
from nbmn.communicators.waiting import wait
from nbmn.engine.lines import cell_label, describe
from nbmn.engine.syscalls import blocked_in
from nbmn.records import Frame, Wait

if TYPE_CHECKING:
    from nbmn.communicators.recordings import Entry
    from nbmn.communicators.world import World

DEEPEST = 60
"""Frames of a stack that travel: the innermost."""
_WAITS = (wait.__code__, Link.wait.__code__)
_NBMN = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


class Lookout:
    """Looks at the main thread from another.

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
        entry = self._world.recorder.last()
        if entry is None or entry.end is not None or not self._waits_now():
            return None
        place = describe(entry.file, entry.line)
        return entry.operation, place, time.monotonic() - entry.begin, self._wait(entry)

    def _waits_now(self) -> bool:
        frame = sys._current_frames().get(self._thread)
        while frame is not None:
            if any(frame.f_code is code for code in _WAITS):
                return True
            frame = frame.f_back
        return False

    def _wait(self, entry: Entry) -> Wait:
        if entry.link:
            code, number = entry.link, entry.number
            links = self._world.links()
            members = next((link.members for link in links if link.code == code), ())
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
        """What it waits for the system to do, such as ``reads /data/train.bin``; often nothing."""
        return blocked_in(self._native)

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
        frames = []
        frame = sys._current_frames().get(self._thread)
        while frame is not None:
            frames.append((frame, frame.f_lineno or 0))
            frame = frame.f_back
        return frames


def _frame(frame: FrameType, line: int) -> Frame:
    code = frame.f_code
    source = linecache.getline(code.co_filename, line, frame.f_globals).strip()
    return Frame(describe(code.co_filename, line), code.co_name, source)
