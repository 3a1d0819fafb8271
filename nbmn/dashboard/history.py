"""The whole run in a bounded number of points.

Two kinds of history, both of a fixed capacity that never rolls off the start of
a run: :class:`ValueHistory` keeps extremes per bucket of iterations,
:class:`RateHistory` the cumulative number of samples at equally spaced times.
When the capacity is reached, neighbouring buckets merge and the spacing doubles.
"""

from __future__ import annotations

import math

import numpy as np

__all__ = ["IterationGrid", "RateHistory", "ValueHistory", "common_mean"]


class IterationGrid:
    """Which bucket an iteration falls into; shared by all values of a run.

    Parameters
    ----------
    capacity : int
        Number of buckets; even.
    """

    def __init__(self, capacity: int) -> None:
        if capacity < 2 or capacity % 2:
            raise ValueError(f"capacity must be even and at least 2, not {capacity}")
        self.capacity = capacity
        self.stride = 1
        self.origin: int | None = None

    def bucket(self, iteration: int) -> int:
        """Index of the bucket; at or beyond ``capacity`` the grid must double first.

        The first iteration ever seen fixes the origin, so that a resumed run
        starts at the left edge; earlier ones that arrive later share bucket 0.
        """
        if self.origin is None:
            # Ranks start out of step and records out of order: leave some room.
            self.origin = 1 if iteration <= self.capacity else iteration - 16
        return max(0, (iteration - self.origin) // self.stride)

    def double(self) -> None:
        self.stride *= 2

    def edges(self, count: int) -> np.ndarray:
        """First iteration of each of ``count`` buckets; shape (count,), float64."""
        return (self.origin or 1) + np.arange(count, dtype=np.float64) * self.stride


class ValueHistory:
    """One named value of every rank, as extremes and mean per bucket.

    First and last values and the global extremes survive any number of merges.
    Values that are not finite are counted, and leave a gap where a bucket holds
    nothing else.
    """

    def __init__(self, ranks: int, grid: IterationGrid) -> None:
        shape = (ranks, grid.capacity)
        self.grid = grid
        self._low = np.full(shape, np.inf)
        self._high = np.full(shape, -np.inf)
        self._low_at = np.zeros(shape, np.int64)
        self._high_at = np.zeros(shape, np.int64)
        self._sum = np.zeros(shape)
        self._count = np.zeros(shape, np.int64)
        self._bad = np.zeros(shape, np.int64)
        self.first_at = np.zeros(ranks, np.int64)
        self.first = np.full(ranks, np.nan)
        self.last_at = np.full(ranks, -1, np.int64)
        self.last = np.full(ranks, np.nan)
        self.not_finite = np.zeros(ranks, np.int64)
        self.first_not_finite_at = np.zeros(ranks, np.int64)

    def add(self, row: int, bucket: int, iteration: int, value: float) -> None:
        """Take one value in; ``bucket`` must be below the grid's capacity."""
        if self.last_at[row] < 0 or iteration < self.first_at[row]:
            self.first_at[row] = iteration
            self.first[row] = value
        if iteration >= self.last_at[row]:
            self.last_at[row] = iteration
            self.last[row] = value
        if not math.isfinite(value):
            if not self.not_finite[row]:
                self.first_not_finite_at[row] = iteration
            self.not_finite[row] += 1
            self._bad[row, bucket] += 1
            return
        self._sum[row, bucket] += value
        self._count[row, bucket] += 1
        if value < self._low[row, bucket]:
            self._low[row, bucket] = value
            self._low_at[row, bucket] = iteration
        if value > self._high[row, bucket]:
            self._high[row, bucket] = value
            self._high_at[row, bucket] = iteration

    def double(self) -> None:
        """Merge neighbouring buckets: the second half of the capacity is free again."""
        half = self.grid.capacity // 2
        even, odd = slice(0, None, 2), slice(1, None, 2)
        for value, at, better in (
            (self._low, self._low_at, np.less),
            (self._high, self._high_at, np.greater),
        ):
            second = better(value[:, odd], value[:, even])
            value[:, :half] = np.where(second, value[:, odd], value[:, even])
            at[:, :half] = np.where(second, at[:, odd], at[:, even])
        for total in (self._sum, self._count, self._bad):
            total[:, :half] = total[:, even] + total[:, odd]
            total[:, half:] = 0
        self._low[:, half:] = np.inf
        self._high[:, half:] = -np.inf

    def latest(self) -> list[float | None]:
        """Per rank the value of its last iteration; None where there is none."""
        pairs = zip(self.last.tolist(), self.last_at.tolist(), strict=True)
        return [value if at >= 0 else None for value, at in pairs]

    def filled(self) -> int:
        """Number of leading buckets up to the last one that holds anything."""
        used = np.flatnonzero((self._count + self._bad).any(axis=0))
        return int(used[-1]) + 1 if used.size else 0

    def curves(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """What a chart draws of the first ``count`` buckets.

        Returns
        -------
        x : ndarray, shape (points,), float64
            Iterations. One point per bucket while the stride is 1; afterwards
            two (the extremes, in the order they came), preceded by the first
            and followed by the last iteration.
        y : ndarray, shape (ranks, points), float64
            NaN outside a rank's own first and last bucket and where a bucket
            holds non-finite values only.
        """
        if not count:
            return np.empty(0), np.empty((len(self.last), 0))
        low, high, _ = self._bridged(count)
        edges = self.grid.edges(count)
        if self.grid.stride == 1:
            return edges, low
        stride, final = self.grid.stride, self.last_at.max()
        x = np.stack([edges + stride * 0.25, edges + stride * 0.75], axis=1).ravel()
        rising = self._low_at[:, :count] <= self._high_at[:, :count]
        pairs = np.where(rising[..., None], np.stack([low, high], -1), np.stack([high, low], -1))
        first = self.first_at[self.last_at >= 0].min()
        start = np.where((self.first_at == first) & (self.last_at >= 0), self.first, np.nan)
        end = np.where(self.last_at == final, self.last, np.nan)
        for cap in (start, end):
            cap[~np.isfinite(cap)] = np.nan
        y = np.concatenate([start[:, None], pairs.reshape(len(low), -1), end[:, None]], axis=1)
        return np.clip(np.concatenate([[first], x, [final]]), first, final), y

    def means(
        self, count: int, left: np.ndarray, awaited: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Mean over the ranks per bucket, on the ``x`` of :meth:`curves`.

        Parameters
        ----------
        count : int
            Number of leading buckets.
        left : ndarray, shape (ranks,), bool
            Ranks of which nothing more is to be expected: from their last report on
            the mean is that of the others.
        awaited : ndarray, shape (ranks,), bool
            Ranks that count although they have never reported this value.

        Returns
        -------
        x, mean : ndarray, shape (points,), float64
            NaN where one of the ranks that count has no value, see :func:`common_mean`.
        """
        x, _ = self.curves(count)
        if not count:
            return x, np.empty(0)
        _, _, mean = self._bridged(count)
        used = (self._count[:, :count] + self._bad[:, :count]) > 0
        last = np.where(used.any(axis=1), count - used[:, ::-1].argmax(axis=1), 0)
        absent = (last == 0) & ~awaited
        over = (np.arange(count) >= last[:, None]) & left[:, None]
        overall = common_mean(mean, over | absent[:, None])
        if self.grid.stride == 1:
            return x, overall
        smooth = np.interp(x, self.grid.edges(count) + (self.grid.stride - 1) / 2, overall)
        # Beside a gap there is no neighbour to draw a line to.
        bucket = np.concatenate([[0], np.repeat(np.arange(count), 2), [count - 1]])
        valid = np.isfinite(overall[bucket])
        return x, np.where(valid & np.isfinite(smooth), smooth, overall[bucket])

    def _bridged(self, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Low, high and mean, straight lines drawn over buckets without a report.

        A value reported every tenth iteration is a line, not ten gaps; NaN is a gap.
        """
        counts, bad = self._count[:, :count], self._bad[:, :count]
        low = np.where(counts > 0, self._low[:, :count], np.nan)
        high = np.where(counts > 0, self._high[:, :count], np.nan)
        mean = np.where(counts > 0, self._sum[:, :count] / np.maximum(counts, 1), np.nan)
        for row in np.flatnonzero(((counts == 0) & (bad == 0)).any(axis=1)):
            reported = np.flatnonzero(counts[row] + bad[row])
            if not reported.size:
                continue
            inside = np.arange(reported[0], reported[-1] + 1)
            holes = inside[(counts[row, inside] == 0) & (bad[row, inside] == 0)]
            for curve in (low, high, mean):
                curve[row, holes] = np.interp(holes, reported, curve[row, reported])
        return low, high, mean


class RateHistory:
    """Samples per second of every rank over the time of the run.

    Keeps the cumulative number of samples at equally spaced times. A step's
    samples are spread evenly over the time since the step before it, so that
    slow steps give a level line, and the area under it is the exact total.

    Parameters
    ----------
    ranks : int
        Number of rows.
    capacity : int
        Number of intervals; even.
    width : float
        Length of an interval at first, in seconds.
    """

    def __init__(self, ranks: int, capacity: int, width: float = 0.5) -> None:
        self.capacity = capacity
        self.width = width
        self._at_edge = np.full((ranks, capacity + 1), np.nan)
        self._time = [math.nan] * ranks
        self._total = [0.0] * ranks
        self._next = [0] * ranks

    def start(self, row: int, time: float) -> None:
        """The rank starts to work at ``time`` (seconds into the run, local to the call)."""
        if math.isnan(self._time[row]):
            self._time[row] = time
            self._next[row] = max(0, math.ceil(time / self.width))

    def add(self, row: int, time: float, samples: float) -> None:
        """The rank has processed ``samples`` more by ``time``."""
        before, total = self._time[row], self._total[row]
        if math.isnan(before):
            # Nobody knows how long these took.
            self.start(row, time)
            return
        self._total[row] = total + samples
        if time <= before:
            return
        self._time[row] = time
        while time >= self._next[row] * self.width:
            if self._next[row] > self.capacity:
                self._double()
                continue
            share = (self._next[row] * self.width - before) / (time - before)
            self._at_edge[row, self._next[row]] = total + samples * max(0.0, share)
            self._next[row] += 1

    def _double(self) -> None:
        half = self.capacity // 2
        self._at_edge[:, : half + 1] = self._at_edge[:, ::2].copy()
        self._at_edge[:, half + 1 :] = np.nan
        self.width *= 2
        self._next = [math.ceil(edge / 2) for edge in self._next]

    def curves(self, left: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Rates in the middle of each interval.

        Parameters
        ----------
        left : ndarray, shape (ranks,), bool
            Ranks of which nothing more is to be expected.

        Returns
        -------
        time : ndarray, shape (points,), float64
            Seconds into the run.
        rate : ndarray, shape (ranks, points), float64
            Samples per second; NaN before a rank started and after its last report.
        mean : ndarray, shape (points,), float64
            Mean over the ranks, NaN where one has yet to start or to report, see
            :func:`common_mean`.
        total : ndarray, shape (points,), float64
            Sum over the ranks. A rank that has yet to start, or has left, adds nothing;
            NaN where one that is at work has yet to report.
        """
        reached = np.array(self._next) - 1
        begun = ~np.isnan(np.array(self._time))
        count = int(reached[begun].max(initial=0))
        rate = np.diff(self._at_edge[:, : count + 1], axis=1) / self.width
        time = (np.arange(count) + 0.5) * self.width
        interval = np.arange(count)
        last = np.where(begun, np.maximum(reached, 0), 0)[:, None]
        over = (interval >= last) & left[:, None]
        # What a rank did in the interval in which it started is known all the same.
        done = np.nan_to_num(self._at_edge[:, : count + 1])
        total = np.where(interval < last, np.diff(done, axis=1) / self.width, np.nan)
        total[over | ~begun[:, None]] = 0
        for row in np.flatnonzero(begun & left & (last[:, 0] < count)):
            rest = self._total[row] - done[row, last[row, 0]]
            total[row, last[row, 0]] = rest / self.width
        total = total.sum(axis=0)
        total[~np.isfinite(rate).any(axis=0)] = np.nan
        return time, rate, common_mean(rate, over), total


def common_mean(values: np.ndarray, excused: np.ndarray) -> np.ndarray:
    """Mean over the ranks where each of them has a value, or is excused.

    Means over different ranks are not joined to one line: it would show a step that no
    rank made. Where a rank has been excused the mean begins anew, one point later.

    Parameters
    ----------
    values : ndarray, shape (ranks, points), float64
        NaN where a rank has no value.
    excused : ndarray, shape (ranks, points), bool
        Where a rank does not count.

    Returns
    -------
    ndarray, shape (points,), float64
        NaN where a rank that counts has no value, or none counts.
    """
    counts = ~excused
    ranks = counts.sum(axis=0)
    total = np.where(counts, values, 0).sum(axis=0)
    mean = np.full(values.shape[1], np.nan)
    np.divide(total, ranks, out=mean, where=ranks > 0)
    mean[1:][(excused[:, 1:] != excused[:, :-1]).any(axis=0)] = np.nan
    return mean
