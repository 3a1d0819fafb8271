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
        if main and signal.getsignal(signal.SIGINT) is not None:
            self._previous = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, kind: object, *details: object) -> None:
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)
        if self.seen and kind is None:
            raise KeyboardInterrupt

    def test(self, test: Callable[[], bool]) -> bool:
        """Call ``test``, or raise the KeyboardInterrupt that was held back."""
        if self.seen:
            self.seen = False
            raise KeyboardInterrupt
        return test()

    def _note(self, *_: object) -> None:
        self.seen = True
