"""Averages a piece of memory over ranks: NumPy on arrays that lie in the cache."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nbmn.communicators.arrays import summing_dtype


def add(target: np.ndarray, others: Sequence[np.ndarray]) -> np.ndarray:
    """Return the sum of all in the dtype for sums: ``target`` itself, or a new array."""
    wide = summing_dtype(target.dtype)
    total = target if wide == target.dtype else target.astype(wide)
    for other in others:
        np.add(total, other, out=total)
    return total


def divide(total: np.ndarray, count: int) -> None:
    """Divide in place."""
    if count > 0 and count & (count - 1) == 0:
        # Exact, and cheaper than a division.
        np.multiply(total, total.dtype.type(1 / count), out=total)
    else:
        np.divide(total, total.dtype.type(count), out=total)


def spread(total: np.ndarray, targets: Sequence[np.ndarray]) -> None:
    """Round ``total`` into each of ``targets``; they get the same bits."""
    for target in targets:
        if target is not total:
            np.copyto(target, total, casting="same_kind")
