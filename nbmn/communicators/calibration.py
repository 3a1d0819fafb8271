"""Finds out which of several ways to average is the fastest here, for each size.

By trying them in turn in the first averagings of about a size. Nothing is moved only to be
timed, and it is timed what this job does on this machine.
"""

from __future__ import annotations

from collections.abc import Sequence

ROUNDS = 4
"""How often each way is tried; the first time, which sets up memory, does not count."""

CLEARLY = 0.8
"""What part of the first way's time another may take at most, to be taken instead."""

_Key = tuple[tuple[int, ...], int]


class Calibration:
    """Which way to take; all ranks that ask and tell in the same order take the same.

    The ``ways`` of its methods are those that can be taken for a size.
    """

    def __init__(self) -> None:
        self._tried: dict[_Key, list[float]] = {}
        self._best: dict[_Key, int] = {}

    def way(self, ways: tuple[int, ...], nbytes: int) -> int:
        """Return the way to take this time."""
        key = ways, nbytes.bit_length()
        if key in self._best:
            return self._best[key]
        return ways[len(self._tried.get(key, ())) % len(ways)]

    def settled(self, ways: tuple[int, ...], nbytes: int) -> bool:
        """No more trials are needed for this size."""
        return (ways, nbytes.bit_length()) in self._best

    def tell(self, ways: tuple[int, ...], nbytes: int, seconds: float) -> list[float] | None:
        """Take note of how long it took.

        Returns
        -------
        None, or after the last trial the least seconds of each way. The ranks then
        take the maximum of these over ranks, and :meth:`settle`.
        """
        tried = self._tried.setdefault((ways, nbytes.bit_length()), [])
        tried.append(seconds)
        count = len(ways)
        if len(tried) < count * ROUNDS:
            return None
        return [min(tried[count + place :: count]) for place in range(count)]

    def settle(self, ways: tuple[int, ...], nbytes: int, seconds: Sequence[float]) -> None:
        """Take the way of the least seconds from now on; the first, where little is gained."""
        key = ways, nbytes.bit_length()
        least = min(range(len(ways)), key=lambda place: seconds[place])
        # A few trials on a busy machine say only what is much slower.
        self._best[key] = ways[least if seconds[least] < CLEARLY * seconds[0] else 0]
        self._tried.pop(key, None)
