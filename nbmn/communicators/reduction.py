"""Averages a piece of memory over ranks: in one pass, or NumPy on arrays that lie in the cache.

All ways to average on a host add in rank order and in the same dtype, so that which of them is
taken changes no bit of the means.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from nbmn.communicators import streaming
from nbmn.communicators.arrays import summing_dtype


def add(parts: Sequence[np.ndarray], total: np.ndarray) -> None:
    """Write the sum into ``total``, of the dtype for sums; it may be one of the first two."""
    first, *others = parts
    if not others:
        if total is not first:
            np.copyto(total, first)
        return
    np.add(first, others[0], out=total, dtype=total.dtype)
    for other in others[1:]:
        np.add(total, other, out=total)


def add_up(parts: Sequence[np.ndarray], own: int, target: np.ndarray) -> np.ndarray:
    """Return the sum of all in the dtype for sums: in ``target``, or a new array.

    ``target`` is ``parts[own]`` itself, or apart from all of them.
    """
    wide = summing_dtype(target.dtype)
    if wide != target.dtype:
        total = np.empty(target.shape, wide)
        add(parts, total)
        return total
    if own > 1 and target is parts[own]:
        before = np.empty_like(target)
        add(parts[:own], before)
        parts = [before, *parts[own:]]
    add(parts, target)
    return target


def average(
    parts: Sequence[np.ndarray],
    own: int,
    target: np.ndarray,
    count: int,
    add_others: Callable[[np.ndarray], None] | None = None,
) -> None:
    """Put the mean of all, the sum divided by ``count``, where each part is; but in ``target``
    rather than where ``own`` is.

    Parameters
    ----------
    add_others
        Adds to the sum, in place, what is not among the parts.
    """
    done = 0
    if add_others is None:
        targets = [*parts[:own], target, *parts[own + 1 :]]
        wide = summing_dtype(target.dtype)
        done = streaming.mean(parts, targets, *division(wide, count))
    if done < target.size:
        rest = [part[done:] for part in parts]
        place = rest[own] if target is parts[own] else target[done:]
        total = add_up(rest, own, place)
        if add_others is not None:
            add_others(total)
        divide(total, count)
        rest[own] = place
        spread(total, rest)


def division(dtype: np.dtype, count: int) -> tuple[np.ufunc, np.generic]:
    """Return by which operation with which number values of ``dtype`` are divided."""
    if count > 0 and count & (count - 1) == 0:
        return np.multiply, dtype.type(1 / count)  # exact, and cheaper
    return np.divide, dtype.type(count)


def divide(total: np.ndarray, count: int) -> None:
    """Divide in place."""
    operation, number = division(total.dtype, count)
    operation(total, number, out=total)


def spread(total: np.ndarray, targets: Sequence[np.ndarray]) -> None:
    """Round ``total`` into each of ``targets``; they get the same bits."""
    rounded = total
    for target in targets:
        if target is not total:
            np.copyto(target, rounded, casting="same_kind")
            rounded = target  # to round takes ten times as long as to copy
