"""Interrupts that Python throws away, since they came in a ``__del__`` or a weak reference's
callback."""

from __future__ import annotations

import sys
import threading
from types import FrameType
from typing import Any

from nbmn.engine.reporter import reporter

Hook = Any
"""As :data:`sys.unraisablehook`, which takes a ``sys.UnraisableHookArgs``."""


class Unheard:
    """A :data:`sys.unraisablehook` that raises a KeyboardInterrupt anew where the cell goes on.

    Not by another signal: that might land in the next ``__del__`` of a loop.

    Parameters
    ----------
    before
        The hook for all other exceptions.
    """

    def __init__(self, before: Hook) -> None:
        self._before = before

    def __call__(self, unraisable: Any, /) -> None:
        ours = issubclass(unraisable.exc_type, KeyboardInterrupt) and reporter().run
        main = threading.current_thread() is threading.main_thread()
        # The debugger has its own trace function, and ends the cell itself.
        free = ours and main and sys.gettrace() is None
        frames = _of_the_run(sys._getframe(1)) if free else []
        if not frames:
            self._before(unraisable)
            return

        def interrupt(frame: FrameType, event: str, arg: object) -> None:
            sys.settrace(None)
            for traced in frames:
                traced.f_trace = None
            raise KeyboardInterrupt

        for frame in frames:
            frame.f_trace = interrupt
        sys.settrace(_ignore)


def _ignore(frame: FrameType, event: str, arg: object) -> None:
    """Trace no function that is called from now on."""


def _of_the_run(frame: FrameType | None) -> list[FrameType]:
    """A frame and its callers, as far as an interrupt may go."""
    frames = []
    while frame is not None and frame.f_globals.get("__name__") != "nbmn.engine.guard":
        frames.append(frame)
        frame = frame.f_back
    return frames if frame is not None else []
