"""Two arrays of equal shape, number by number. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

PIECE = 1 << 16
"""Elements compared at a time: few enough to stay in the cache."""


@dataclass(frozen=True, slots=True)
class Contrast:
    """How an array differs from the reference."""

    differing: int
    """Elements that are farther apart than was tolerated; NaN equals NaN, and 0 equals −0."""
    total: int
    most: float | None = None
    """The largest absolute difference; None where there is none in numbers."""
    where: tuple[int, ...] = ()
    """Index of the largest difference, or of the first where it is None."""
    here: str = ""
    """The element there."""
    there: str = ""
    """The reference's element there."""
    nans: tuple[int, int] = (0, 0)
    """How many NaNs there are, and in the reference."""


def contrast(array: np.ndarray, reference: np.ndarray, tolerance: float = 0.0) -> Contrast:
    """Compare with the reference.

    Parameters
    ----------
    array, reference
        Of one shape; dtypes may differ.
    tolerance
        Numbers that are at most so far apart count as equal.
    """
    one, other = np.asarray(array).reshape(-1), np.asarray(reference).reshape(-1)
    differing, most, at, first = 0, -1.0, -1, -1
    nans = np.zeros(2, int)
    for begin in range(0, one.size, PIECE):
        a, b = one[begin : begin + PIECE], other[begin : begin + PIECE]
        unequal = _unequal(a, b)
        distance = _distances(a, b)
        if tolerance and distance is not None:
            unequal &= ~(distance <= tolerance)
        if distance is None or not np.isfinite(distance.max()):
            no_a, no_b = _nans(a), _nans(b)
            nans += np.count_nonzero(no_a), np.count_nonzero(no_b)
            unequal &= ~(no_a & no_b)
            if distance is not None:
                distance = np.where(unequal & ~np.isnan(distance), distance, -1)
        count = int(np.count_nonzero(unequal))
        if count == 0:
            continue
        differing += count
        if first < 0:
            first = begin + int(np.argmax(unequal))
        if distance is not None:
            place = int(np.argmax(distance))
            if distance[place] > most:
                most, at = float(distance[place]), begin + place
    place = at if at >= 0 else first
    counts = (int(nans[0]), int(nans[1]))
    if place < 0:
        return Contrast(0, one.size, nans=counts)
    index = tuple(int(i) for i in np.unravel_index(place, array.shape)) if array.shape else ()
    size = most if at >= 0 else None
    return Contrast(differing, one.size, size, index, str(one[place]), str(other[place]), counts)


def _unequal(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Where elements differ; of records, where a field does, and a field's NaN equals NaN."""
    if a.dtype.names is None and b.dtype.names is None:
        return a != b
    if a.dtype.names != b.dtype.names:
        return np.ones(a.shape, bool)
    differ = np.zeros(a.shape, bool)
    for name in a.dtype.names:
        x, y = a[name], b[name]
        if x.shape != y.shape:
            return np.ones(a.shape, bool)
        field = _unequal(x, y) & ~(_nans(x) & _nans(y))
        differ |= field.any(axis=tuple(range(a.ndim, field.ndim)))
    return differ


def _nans(array: np.ndarray) -> np.ndarray:
    if array.dtype.kind in "mM":
        return np.isnat(array)
    if array.dtype.kind in "fc":
        return np.isnan(array)
    return np.zeros(array.shape, bool)


def _distances(a: np.ndarray, b: np.ndarray) -> np.ndarray | None:
    """How far numbers are apart, NaN where that is undefined; None where there are no numbers."""
    if not {a.dtype.kind, b.dtype.kind} <= set("biufc"):
        return None
    # Floats of one width are exact enough as they are; of integers, differences may wrap.
    same = a.dtype == b.dtype and a.dtype.kind in "fc" and a.dtype.itemsize >= 4
    wide = np.result_type(a, b, np.float32 if same else np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        distance = np.subtract(a, b, dtype=wide)
        return np.abs(distance, out=None if wide.kind == "c" else distance)
