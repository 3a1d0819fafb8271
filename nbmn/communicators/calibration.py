"""Finds out which of several ways to average is the fastest here, for each size.

By trying them in turn in the first averagings of about a size. Nothing is moved only to be
timed, and it is timed what this job does on this machine.
"""

from __future__ import annotations

from collections.abc import Sequence

ROUNDS = 4
"""How often each way is tried; the first time, which sets up memory, does not count."""


class Calibration:
    """Which way to take; all ranks that ask and tell in the same order take the same.

    Parameters
    ----------
    ways
        How many there are.
    """

    def __init__(self, ways: int) -> None:
        self._ways = ways
        self._tried: dict[int, list[float]] = {}
        self._best: dict[int, int] = {}

    def way(self, nbytes: int) -> int:
        """Return the way to take this time."""
        size = nbytes.bit_length()
        if size in self._best:
            return self._best[size]
        return len(self._tried.get(size, ())) % self._ways

    def settled(self, nbytes: int) -> bool:
        """No more trials are needed for this size."""
        return nbytes.bit_length() in self._best

    def tell(self, nbytes: int, seconds: float) -> list[float] | None:
        """Take note of how long it took.

        Returns
        -------
        None, or after the last trial the least seconds of each way. The ranks then
        take the maximum of these over ranks, and :meth:`settle`.
        """
        tried = self._tried.setdefault(nbytes.bit_length(), [])
        tried.append(seconds)
        if len(tried) < self._ways * ROUNDS:
            return None
        return [min(tried[self._ways + way :: self._ways]) for way in range(self._ways)]

    def settle(self, nbytes: int, seconds: Sequence[float]) -> None:
        """Take the way of the least seconds from now on."""
        size = nbytes.bit_length()
        self._best[size] = min(range(self._ways), key=lambda way: seconds[way])
        self._tried.pop(size, None)
