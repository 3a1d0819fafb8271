"""Standard output and error of a rank, which its code may replace by anything."""

from __future__ import annotations

import functools
import sys
from typing import Any, TextIO


@functools.cache
def streams() -> dict[str, Any]:
    """Return what the engine began with, by name; to be called before any code of the user's."""
    return {"stdout": sys.stdout, "stderr": sys.stderr}


def restore_streams() -> None:
    """Put back those that cannot be flushed; local.

    The engine flushes both before it answers, and with None, or a closed file, never would.
    """
    for name, first in streams().items():
        try:
            getattr(sys, name).flush()
        except BaseException:  # noqa: BLE001 - whatever the user's object raises
            setattr(sys, name, first)


class CurrentStdout:
    """Writes to whatever ``sys.stdout`` is by then; local.

    Chainer's extensions keep the ``sys.stdout`` of their import as a default. Chainer is imported
    before the engine has its own: what they print would go around it, by a pipe, and come out of
    order with all else.
    """

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)  # what copying and pickling ask for is not the stream's
        return getattr(self._stream(), name)

    def _stream(self) -> TextIO | None:
        return sys.__stdout__ if sys.stdout is self else sys.stdout
