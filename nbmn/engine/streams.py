"""Standard output and error of a rank, which its code may replace by anything."""

from __future__ import annotations

import functools
import sys
from typing import Any


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
