"""Names for the user's lines: notebook cells and files."""

from __future__ import annotations

import os
import traceback
from types import TracebackType

PREFIX = "<cell "


def cell_filename(label: str) -> str:
    """The file name a cell is compiled under: ``[12]`` gives ``<cell [12]>``."""
    return f"{PREFIX}{label}>"


def cell_label(filename: str) -> str | None:
    """The inverse of :func:`cell_filename`; None for a real file."""
    return filename[len(PREFIX) : -1] if filename.startswith(PREFIX) else None


def describe(filename: str, lineno: int) -> str:
    """A line as people say it: ``cell [12] line 3`` or ``train.py line 40``."""
    if not filename:
        return ""
    label = cell_label(filename)
    place = f"cell {label}" if label else os.path.basename(filename)
    return f"{place} line {lineno}"


def in_cell(trace: TracebackType | None) -> bool:
    """Whether an exception passed through a line of a cell."""
    return any(cell_label(frame.f_code.co_filename) for frame, _ in traceback.walk_tb(trace))


def failing_line(trace: TracebackType | None) -> str:
    """The user's line an exception passed through last: the innermost cell line, else any."""
    frames = [(frame.f_code.co_filename, lineno) for frame, lineno in traceback.walk_tb(trace)]
    cells = [place for place in frames if cell_label(place[0])]
    places = cells or frames
    return describe(*places[-1]) if places else ""
