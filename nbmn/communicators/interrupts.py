"""Holds SIGINT back where half a step would lose track of how far this rank is."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Any


class HeldInterrupt:
    """A context in which SIGINT is noted, and raised by ``test`` or at the end.

    Only in the main thread: elsewhere Python raises no KeyboardInterrupt.
    """

    def __init__(self) -> None:
        self.seen = False
        self._previous: Any = None

    def __enter__(self) -> HeldInterrupt:
        main = threading.current_thread() is threading.main_thread()
        # A handler not set from Python (None) could not be put back.
        if main and signal.getsignal(signal.SIGINT) not in (None, signal.SIG_IGN):
            self._previous = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, kind: object, *details: object) -> None:
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)
        if self.seen and kind is None:
            signal.raise_signal(signal.SIGINT)

    def test(self, test: Callable[[], bool]) -> bool:
        """Call ``test``, or what SIGINT calls elsewhere: that raises KeyboardInterrupt."""
        if self.seen:
            self.seen = False
            if callable(self._previous):
                self._previous(signal.SIGINT, None)
            else:
                raise KeyboardInterrupt
        return test()

    def _note(self, *_: object) -> None:
        self.seen = True
