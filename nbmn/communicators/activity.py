"""What this rank waits for now, readable from another thread."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any, TypeVar

# A line inside these says nothing to the user, who called them.
_LIBRARIES = frozenset({"nbmn", "chainer", "chainermn"})

_Method = TypeVar("_Method", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Activity:
    """A collective that this rank is in."""

    operation: str
    """Its name, such as ``allreduce``."""
    since: float
    """When it began, on the clock of ``time.monotonic`` (seconds)."""
    file: str
    """The user's file: of the innermost frame outside nbmn and Chainer."""
    line: int
    """The user's line, counted from 1."""


class ActivityTrack:
    """Holds the collective that one thread is in; another thread may read it at any time."""

    __slots__ = ("entry",)

    def __init__(self) -> None:
        self.entry: tuple[str, float, FrameType] | None = None

    def snapshot(self) -> Activity | None:
        """Return what is going on, None between collectives; local, takes microseconds."""
        entry = self.entry
        if entry is None:
            return None
        operation, since, inner = entry
        frame: FrameType | None = inner
        while frame is not None and _library(frame):
            frame = frame.f_back
        frame = frame or inner
        return Activity(operation, since, frame.f_code.co_filename, frame.f_lineno)


def _library(frame: FrameType) -> bool:
    return frame.f_globals.get("__name__", "").partition(".")[0] in _LIBRARIES


def collective(method: _Method) -> _Method:
    """Record calls of a method in ``self.track``; of nested calls only the outermost.

    Only the frame is kept: its file and line are looked up when somebody asks.
    """
    name = method.__name__

    @functools.wraps(method)
    def recorded(self: Any, *args: Any, **kwargs: Any) -> Any:
        track = self.track
        if track.entry is not None:
            return method(self, *args, **kwargs)
        track.entry = (name, time.monotonic(), sys._getframe())
        try:
            return method(self, *args, **kwargs)
        finally:
            track.entry = None

    return recorded  # type: ignore[return-value]
