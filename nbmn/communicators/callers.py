"""Whose code a frame runs: the user's own, or a library's that the user called."""

from __future__ import annotations

import enum
import os
import sysconfig
from types import FrameType

_SILENT = frozenset({"nbmn", "chainer", "chainermn"})
_STANDARD = tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib")})
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


class Origin(enum.Enum):
    """Where code comes from."""

    OWN = "own"
    """A cell of a notebook, or a file of the user's."""
    FOREIGN = "foreign"
    """An installed package, or no file at all: told of where there is nothing of the user's."""
    LIBRARY = "library"
    """Python's, Chainer's or nbmn's, a line of which says nothing to a user."""


def origin(frame: FrameType) -> Origin:
    """Say whose code a frame runs; local."""
    return origin_of(str(frame.f_globals.get("__name__") or ""), frame.f_code.co_filename)


def origin_of(module: str, file: str) -> Origin:
    """Say whose code is in a module, and a file, of these names."""
    if module.partition(".")[0] in _SILENT or file.startswith("<frozen "):
        return Origin.LIBRARY
    if file.startswith("<"):
        return Origin.OWN if file.startswith("<cell ") else Origin.FOREIGN
    if any(folder in file for folder in _INSTALLED):
        return Origin.FOREIGN
    return Origin.LIBRARY if file.startswith(_STANDARD) else Origin.OWN
