"""The notebook's keyboard and page, as a rank's standard input and output.

A rank has neither. While it is debugged, what it prints goes out with its records and a
line it reads comes back as a command, so that both appear in one place and in order.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import threading
import time
from collections.abc import Iterator
from queue import SimpleQueue
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from nbmn.engine.reporter import Reporter


class Console:
    """Carries text between this rank and the notebook; for one run.

    Parameters
    ----------
    line
        Takes what is printed to the notebook.
    where
        The user's line that is looked at, where it is not the one the rank stands on.
    """

    def __init__(self, line: Reporter, where: str = "") -> None:
        self.where = where
        self.keyboard = _Keyboard(self)
        self.closed = False
        """Whether the person has left, which the reporter says, or the cell is over: nothing gets
        an answer any more."""
        self._turn = threading.RLock()
        self._spoke: threading.Thread | None = None
        self._line = line
        self._asked = 0
        self._since: float | None = None
        self._answers: SimpleQueue[tuple[int, str]] = SimpleQueue()

    @property
    def seconds(self) -> float | None:
        """How long the person has been asked something; None if they are not. From any thread."""
        since = self._since
        return None if since is None else time.monotonic() - since

    def write(self, text: str) -> None:
        """Print; may be called by any thread."""
        self._line.say(text)

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Talk to the person; other threads that want to wait until it is over."""
        with self._turn:
            thread = threading.current_thread()
            if self._spoke not in (None, thread):
                self.write(f"--- {thread.name} ---\n")
            self._spoke = thread
            yield

    def ask(self) -> str:
        """A line that the person types, with its newline; empty when they have left."""
        with self.turn():
            if self.closed:
                return ""
            self._asked += 1
            self._since = time.monotonic()
            try:
                self._line.say("", self._asked)
                while True:
                    question, text = self._answers.get()
                    if self.closed or question == self._asked:
                        return "" if self.closed else text
            finally:
                self._since = None

    def answer(self, question: int, text: str) -> None:
        """What the person typed; called by the reporter's thread."""
        self._answers.put((question, text))

    @property
    def open(self) -> bool:
        """Whether the notebook shows what is printed."""
        return self._line.console is self

    @contextlib.contextmanager
    def connected(self) -> Iterator[None]:
        """Be this process's standard input, output and error, and take answers."""
        before = sys.stdin, sys.stdout, sys.stderr
        sys.stdin = self.keyboard  # type: ignore[assignment]
        sys.stdout = _Page(self, before[1])  # type: ignore[assignment]
        sys.stderr = _Page(self, before[2])  # type: ignore[assignment]
        self._line.console = self
        try:
            yield
        finally:
            self._line.console = None
            self.closed = True
            self.answer(0, "")  # a thread may outlive the cell, and its question
            sys.stdin, sys.stdout, sys.stderr = before
            self._line.say("", last=True)


class _Keyboard(io.TextIOBase):
    def __init__(self, console: Console) -> None:
        self.console = console

    def readline(self, size: int = -1) -> str:  # type: ignore[override]
        return self.console.ask()

    def readable(self) -> bool:
        return True


class _Page(io.TextIOBase):
    encoding = "utf-8"  # type: ignore[assignment]

    def __init__(self, console: Console, below: TextIO) -> None:
        self._console = console
        self._below = below
        self._pid = os.getpid()

    def write(self, text: str) -> int:  # type: ignore[override]
        # A forked child has no reporter; and whoever got hold of this, such as a handler for
        # logging, goes on with it when the console is closed.
        if os.getpid() != self._pid or not self._console.open:
            return self._below.write(text)
        if text:
            self._console.write(text)
        return len(text)

    def flush(self) -> None:
        self._below.flush()

    def writable(self) -> bool:
        return True
