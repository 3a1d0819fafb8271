"""Two arrays of equal shape, number by number. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

PIECE = 1 << 20
"""Numbers compared at a time."""


@dataclass(frozen=True, slots=True)
class Contrast:
    """How an array differs from the reference."""

    differing: int
    """Numbers that are not equal; NaN equals NaN, and 0 equals −0."""
    total: int
    most: float | None = None
    """The largest absolute difference; None where there is none in numbers."""
    where: tuple[int, ...] = ()
    """Index of the largest difference, or of the first where it is None."""
    here: str = ""
    """The number there."""
    there: str = ""
    """The reference's number there."""
    nans: tuple[int, int] = (0, 0)
    """How many NaNs there are, and in the reference."""


def contrast(array: np.ndarray, reference: np.ndarray) -> Contrast:
    """Compare with the reference.

    Parameters
    ----------
    array, reference
        Of one shape; dtypes may differ.
    """
    one, other = array.reshape(-1), reference.reshape(-1)
    differing, most, at, first = 0, -1.0, -1, -1
    nans = [0, 0]
    for begin in range(0, one.size, PIECE):
        a, b = one[begin : begin + PIECE], other[begin : begin + PIECE]
        unequal = a != b
        if _may_hold_nans(a) or _may_hold_nans(b):
            no_a, no_b = _nans(a), _nans(b)
            nans[0] += int(np.count_nonzero(no_a))
            nans[1] += int(np.count_nonzero(no_b))
            unequal &= ~(no_a & no_b)
        count = int(np.count_nonzero(unequal))
        if count == 0:
            continue
        differing += count
        if first < 0:
            first = begin + int(np.argmax(unequal))
        distance = _distances(a, b, unequal)
        if distance is not None:
            place = int(np.argmax(distance))
            if distance[place] > most:
                most, at = float(distance[place]), begin + place
    place = at if at >= 0 else first
    if place < 0:
        return Contrast(0, one.size, nans=(nans[0], nans[1]))
    index = tuple(int(i) for i in np.unravel_index(place, array.shape)) if array.shape else ()
    size = most if at >= 0 else None
    here, there = str(one[place]), str(other[place])
    return Contrast(differing, one.size, size, index, here, there, (nans[0], nans[1]))


def _may_hold_nans(array: np.ndarray) -> bool:
    return array.dtype.kind in "fcmM"


def _nans(array: np.ndarray) -> np.ndarray:
    if array.dtype.kind in "mM":
        return np.isnat(array)
    if array.dtype.kind in "fc":
        return np.isnan(array)
    return np.zeros(array.shape, bool)


def _distances(a: np.ndarray, b: np.ndarray, unequal: np.ndarray) -> np.ndarray | None:
    """How far unequal numbers are apart, −1 elsewhere; None where there are no numbers."""
    if not {a.dtype.kind, b.dtype.kind} <= set("biufc"):
        return None
    wide = np.complex128 if "c" in (a.dtype.kind, b.dtype.kind) else np.float64
    with np.errstate(invalid="ignore", over="ignore"):
        distance = np.abs(a.astype(wide) - b.astype(wide))
    return np.where(unequal & ~np.isnan(distance), distance, -1.0)
