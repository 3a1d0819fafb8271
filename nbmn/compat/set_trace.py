"""Lends debuggers that read a keyboard one of our own, where there is no keyboard."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any


@contextlib.contextmanager
def redirected(enter: Callable[[FrameType], None], ipdb: Any) -> Iterator[None]:
    """Have all calls that open a debugger call ``enter`` with the caller's frame.

    These are ``breakpoint()``, and ``set_trace()`` of pdb, IPython and ipdb: the hook that
    Python has for it serves the first only.

    Parameters
    ----------
    ipdb
        IPython's debugger class, of which ``ipdb`` makes use as well.
    """
    import pdb

    def hook(*args: Any, **kwargs: Any) -> None:
        enter(sys._getframe(1))

    def method(self: Any, frame: FrameType | None = None, **kwargs: Any) -> None:
        enter(frame or sys._getframe(1))

    before = sys.breakpointhook, pdb.set_trace, ipdb.set_trace
    sys.breakpointhook, pdb.set_trace, ipdb.set_trace = hook, hook, method  # type: ignore
    try:
        yield
    finally:
        sys.breakpointhook, pdb.set_trace, ipdb.set_trace = before  # type: ignore
