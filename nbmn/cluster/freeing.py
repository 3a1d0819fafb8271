"""Frees ranks that wait for ever, and remembers why."""

from __future__ import annotations

import time
from collections.abc import Collection

from nbmn.cluster.listener import Listener
from nbmn.debug.diagnosis import Diagnosis

FREE_AGAIN = 2.0
"""Seconds after which a rank that was freed from a wait, and still waits, is freed again."""


class Freeing:
    """What was done for the ranks of one run."""

    def __init__(self, listener: Listener, run: str) -> None:
        self.diagnosis: Diagnosis | None = None
        """Why ranks had to be freed; the first, since others follow from it."""
        self._listener = listener
        self._run = run
        self._when: dict[int, float] = {}

    @property
    def ranks(self) -> frozenset[int]:
        """Those that were interrupted for it."""
        return frozenset(self._when)

    def free(self, found: Diagnosis, running: Collection[int]) -> None:
        """Interrupt those of the ranks that wait which still run."""
        self.diagnosis = found if self.diagnosis is None else self.diagnosis.with_more(found)
        now = time.monotonic()
        due = [
            rank
            for rank in found.ranks
            if rank in running and now - self._when.get(rank, -FREE_AGAIN) >= FREE_AGAIN
        ]
        self._when.update(dict.fromkeys(due, now))
        self._listener.free(due, self._run)
