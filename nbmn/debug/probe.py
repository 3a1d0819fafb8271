"""What the system tells of ranks on this host that tell nothing themselves."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from nbmn.communicators.recordings import Entry, read_recorder
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


def left_stack(pid: int, descriptor: int) -> tuple[Frame, ...]:
    """The main thread's frames that a silent rank has left (:mod:`nbmn.engine.blackbox`).

    The outermost first, from the cell on; empty if there are none.
    """
    if descriptor < 0:
        return ()
    try:
        return parse_stacks(Path(f"/proc/{pid}/fd/{descriptor}").read_text(errors="replace"))
    except OSError:
        return ()


def parse_stacks(text: str) -> tuple[Frame, ...]:
    """The main thread's frames out of what Python's watchdog writes, the outermost first."""
    # Threads come the youngest first, frames the innermost first.
    main = text.rpartition("hread 0x")[2]
    found = [match.groupdict() for match in _DUMPED.finditer(main)]
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
