"""Where ranks of this host crashed: what their fault handler wrote, read after their end."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import BinaryIO

from nbmn.debug.probe import is_here, parse_stack, user_line
from nbmn.engine.blackbox import CRASH, FILE
from nbmn.messages import RankInfo


class LastWords:
    """Holds the files for the ranks' stacks open, since they are gone with the processes."""

    def __init__(self, ranks: Iterable[RankInfo]) -> None:
        self._files = {info.rank: file for info in ranks if (file := _open(info)) is not None}

    def line(self, rank: int) -> str:
        """The user's line at which native code crashed, such as ``cell [12] line 3``, or empty."""
        file = self._files.get(rank)
        if file is None:
            return ""
        file.seek(0)
        _, crashed, stack = file.read().decode(errors="replace").rpartition(CRASH)
        return user_line(parse_stack(stack)) if crashed else ""

    def close(self) -> None:
        """Let go of the files."""
        for file in self._files.values():
            file.close()
        self._files.clear()


def _open(info: RankInfo) -> BinaryIO | None:
    if info.box < 0 or not is_here(info.host):
        return None
    path = f"/proc/{info.pid}/fd/{info.box}"
    try:
        if os.readlink(path).startswith(f"/memfd:{FILE}"):
            return open(path, "rb")
    except OSError:
        pass  # it is not ours to read, or gone
    return None
