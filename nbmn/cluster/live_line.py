"""A line of a terminal that is written over while a cell runs, and is gone at its end."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Callable
from typing import TextIO

PERIOD = 1.0
"""Seconds between two lines."""
_ERASE = "\r\x1b[K"


class LiveLine:
    """The line below what is printed; of any thread.

    Parameters
    ----------
    stream
        The terminal.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lock = threading.Lock()
        self._closed = False
        self._text = ""
        self._due = 0.0

    def show(self, text: Callable[[], str]) -> None:
        """Write ``text`` over the line, cut to the terminal's width; once a second at most."""
        now = time.monotonic()
        if self._closed or now < self._due:
            return
        # What errors say may have lines; a full one would begin another.
        line = " ".join(text().split())[: shutil.get_terminal_size().columns - 1]
        with self._lock:
            if not self._closed and line:
                self._due = now + PERIOD
                self._write(_ERASE + line)
                self._text = line

    def erase(self) -> None:
        """Make room for what is to be printed; the line comes back below it."""
        with self._lock:
            if self._text:
                self._write(_ERASE)
                self._text, self._due = "", 0.0

    def close(self) -> None:
        """Erase the line; there will be none any more."""
        self._closed = True
        self.erase()

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def live_line() -> LiveLine | None:
    """The line of this process's terminal; None where it has none, as a kernel."""
    return LiveLine(sys.stdout) if sys.stdout is not None and sys.stdout.isatty() else None
