"""What the system tells of ranks on this host that tell nothing themselves."""

from __future__ import annotations

import os
import platform
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from nbmn.communicators.recordings import Entry, read_recorder
from nbmn.engine.blackbox import FILE, SIGNAL
from nbmn.engine.lines import cell_label, describe
from nbmn.records import Frame

_DUMPED = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)')


def process_state(pid: int) -> str:
    """The system's letter for a process (``R``, ``S``, ``D``, ``T``, ``t``, ``Z``), or ``""``."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    # The name, in parentheses, may contain anything.
    return text.rpartition(")")[2].split()[0]


class Stacks:
    """Has ranks of this host write their stacks that cannot answer by themselves."""

    def __init__(self) -> None:
        self._asked: dict[int, tuple[float, tuple[Frame, ...]]] = {}

    def once(self, pid: int, descriptor: int, silence: float) -> tuple[Frame, ...]:
        """As :meth:`ask`, once in a silence.

        Parameters
        ----------
        silence
            Tells one silence from the next.
        """
        asked, frames = self._asked.get(pid, (None, ()))
        if asked == silence:
            return frames
        if not takes_signals(pid):
            return ()  # later it may
        frames = self.ask(pid, descriptor)
        self._asked[pid] = silence, frames
        return frames

    def ask(self, pid: int, descriptor: int) -> tuple[Frame, ...]:
        """The main thread's frames of a rank, the outermost first, from the cell on.

        Empty if it does not write them (see :mod:`nbmn.engine.blackbox`), and if it was not
        asked, since the signal would cut short the system call that it is in.
        """
        if descriptor < 0 or not _catches(pid, SIGNAL) or not takes_signals(pid):
            return ()
        try:
            path = f"/proc/{pid}/fd/{descriptor}"
            if not os.readlink(path).startswith(f"/memfd:{FILE}"):
                return ()  # another process has this id now, and the file is its own
            with open(path, "r+", errors="replace") as file:
                file.truncate(0)
                os.kill(pid, SIGNAL)
                return parse_stack(_read(file))
        except OSError:
            return ()


WRITING = 0.3
"""Seconds that a rank has to write its stack."""


def _read(file: TextIO) -> str:
    """What is written to a file, once no more comes."""
    text, deadline = "", time.monotonic() + WRITING
    while time.monotonic() < deadline:
        time.sleep(0.01)
        file.seek(0)
        before, text = text, file.read()
        if text and text == before:
            break
    return text


def _catches(pid: int, number: int) -> bool:
    """Whether a process handles a signal; one that it does not would end it."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    caught = re.search(r"^SigCgt:\s*([0-9a-f]+)", status, re.MULTILINE)
    return caught is not None and bool(int(caught[1], 16) >> (number - 1) & 1)


_CUT_SHORT = {
    "x86_64": frozenset(
        {7, 23, 34, 35, 65, 69, 70, 128, 130, 208, 220, 230, 232, 270, 271, 281, 333, 441}
    ),
    "aarch64": frozenset({4, 22, 72, 73, 101, 115, 133, 137, 188, 189, 192, 193, 292, 441}),
}
"""Sleeps, polls, waits for signals, and System V messages and semaphores: a signal ends them,
where it only interrupts others for a moment (``man 7 signal``)."""


def takes_signals(pid: int) -> bool:
    """Whether a signal that is handled leaves what a process does as it is."""
    if process_state(pid) == "R":
        return True
    try:
        number = Path(f"/proc/{pid}/syscall").read_text().split()[0]
    except (OSError, IndexError):
        return False
    short = _CUT_SHORT.get(platform.machine())
    return short is not None and (number == "running" or int(number) not in short)


def parse_stack(text: str) -> tuple[Frame, ...]:
    """The frames out of what Python's fault handler writes, the outermost first."""
    found = [match.groupdict() for match in _DUMPED.finditer(text)]
    own = [i for i, frame in enumerate(found) if cell_label(frame["file"])]
    cut = found[: own[-1] + 1] if own else []
    return tuple(
        Frame(describe(frame["file"], int(frame["line"])), frame["function"])
        for frame in reversed(cut)
    )


def user_line(frames: Sequence[Frame]) -> str:
    """The innermost line of a cell, else the innermost."""
    cells = [frame.place for frame in frames if frame.place.startswith("cell ")]
    places = cells or [frame.place for frame in frames]
    return places[-1] if places else ""


def calls_at(pid: int, line: str, since: float, operation: str = "") -> int | None:
    """How often a rank has begun an operation at a line, from a time on; None if unknown.

    Parameters
    ----------
    line
        Such as ``cell [12] line 3``.
    since
        ``time.monotonic()``, which processes of a host share.
    operation
        Such as ``allreduce``; empty for any.
    """
    try:
        entries = read_recorder(pid)
    except (OSError, ValueError):
        return None
    return count_calls(entries, line, since, operation)


def count_calls(
    entries: Sequence[Entry], line: str, since: float, operation: str = ""
) -> int | None:
    """As :func:`calls_at`; None if the recording does not reach back that far."""
    if entries and entries[0].sequence > 1 and entries[0].begin >= since:
        return None
    return sum(
        (not operation or entry.operation == operation)
        and entry.begin >= since
        and describe(entry.file, entry.line) == line
        for entry in entries
    )


def is_here(host: str) -> bool:
    """Whether a rank's host is this one."""
    return host == os.uname().nodename
