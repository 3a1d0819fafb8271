"""Averages a piece of memory over ranks: NumPy on arrays that lie in the cache."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from nbmn.communicators.arrays import summing_dtype


class Accumulator:
    """Sums contributions in a buffer of its own, and writes the mean to several places."""

    def __init__(self, nbytes: int) -> None:
        # float16 is summed in float32, hence the factor.
        self._buffer = np.empty(2 * nbytes, np.uint8)

    def sum(self, parts: Iterable[np.ndarray], dtype: np.dtype, size: int) -> np.ndarray:
        """Return the sum of parts of ``dtype``, in the dtype for sums; valid until the next.

        A part may be overwritten as soon as the next one is asked for.
        """
        wide = summing_dtype(dtype)
        total = self._buffer[: wide.itemsize * size].view(wide)
        parts = iter(parts)
        first = next(parts, None)
        if first is None:
            total.fill(0)
            return total
        second = next(parts, None)
        if second is None:
            np.copyto(total, first)
            return total
        np.add(first, second, out=total, dtype=wide)
        for part in parts:
            np.add(total, part, out=total, dtype=wide)
        return total


def write_mean(total: np.ndarray, count: int, outs: Sequence[np.ndarray]) -> None:
    """Divide ``total`` by ``count`` and round it once into each of ``outs``; may overwrite it."""
    factor = np.ones((), total.dtype)
    if count & (count - 1) == 0:
        factor /= count  # exact, and cheaper than a division
    else:
        np.divide(total, total.dtype.type(count), out=total)
    for out in outs:
        # Also where the factor is 1: for blocks of this size, NumPy's vector stores are
        # faster than the copy instruction behind copyto.
        np.multiply(total, factor, out=out, dtype=total.dtype, casting="same_kind")
