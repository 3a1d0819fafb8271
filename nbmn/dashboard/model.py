"""From records to what a board shows; no drawing, no threads, no clock of its own.

:class:`RunModel` takes records one at a time and answers with a frozen
:class:`~nbmn.dashboard.snapshot.Snapshot`. ``now`` is always passed in, in seconds since
the epoch on the notebook's clock.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import compress

import numpy as np

from nbmn.dashboard.gpus import GpuHistory, warning
from nbmn.dashboard.history import IterationGrid, RateHistory, ValueHistory
from nbmn.dashboard.snapshot import (
    CROWD,
    THROUGHPUT,
    Chart,
    Lamp,
    Progress,
    RankRow,
    Snapshot,
)
from nbmn.dashboard.text import importance, kind, label, not_finite
from nbmn.records import GpuSample, Heartbeat, Record, RunEnded, RunStarted, Step

__all__ = ["RunModel"]

_SKEW = 2.0
_OVERDUE = 2.0
"""Seconds without a step for which an estimate of the time to go stands in any case."""


@dataclass(slots=True)
class _Rank:
    """What is known of one rank; times are on the notebook's clock."""

    skew: float | None = None
    heard: float = math.nan
    started: float = math.nan
    stepped: float = math.nan
    iteration: int = 0
    epoch: float | None = None
    samples: int = 0
    beat: Heartbeat | None = None
    beat_time: float = math.nan
    ended: RunEnded | None = None
    gpu: GpuHistory = field(default_factory=GpuHistory)
    recent: deque[tuple[float, int]] = field(default_factory=deque)
    """(time, samples so far), at least 0.1 s apart, for the rate of late."""


class RunModel:
    """The state of one run.

    Parameters
    ----------
    ranks : iterable of int
        MPI ranks that take part.
    now : float
        When the board was made.
    title : str
        Shown until a rank sends a better one.
    capacity : int or None
        Buckets per curve; by default 400, or 200 for a crowd.
    window : float
        Seconds over which "lately" is measured.
    silent_after : float
        Seconds without any record after which a rank counts as silent.
    """

    def __init__(
        self,
        ranks: Iterable[int],
        now: float,
        *,
        title: str = "",
        capacity: int | None = None,
        window: float = 5.0,
        silent_after: float = 5.0,
    ) -> None:
        self.ranks = tuple(ranks)
        self.title = title
        self.status = "running"
        self.message = ""
        self._made = now
        self._finished: float | None = None
        self._window = window
        self._silent_after = silent_after
        capacity = capacity or (400 if len(self.ranks) <= CROWD else 200)
        self._row = {rank: row for row, rank in enumerate(self.ranks)}
        self._state = [_Rank() for _ in self.ranks]
        self._grid = IterationGrid(capacity)
        self._rates = RateHistory(len(self.ranks), capacity)
        self._begin: float | None = None
        self._values: dict[str, ValueHistory] = {}
        self._iterations: int | None = None
        self._epochs: float | None = None
        self._pace: deque[tuple[float, float]] = deque()

    def apply(self, record: Record, now: float) -> None:
        """Take in one record; those of ranks that are not shown are ignored."""
        row = self._row.get(record.rank)
        if row is None:
            return
        state = self._state[row]
        if state.skew is None:
            # Hosts without a common clock: trust the arrival, not the sender.
            late = now - record.time
            state.skew = late if abs(late) > _SKEW else 0.0
        state.heard = now
        time = record.time + state.skew
        if isinstance(record, Step):
            self._step(row, state, record, time)
        elif isinstance(record, Heartbeat):
            if state.beat is None or time >= state.beat_time:
                state.beat, state.beat_time = record, time
        elif isinstance(record, RunStarted):
            self._started(row, state, record, time)
        elif isinstance(record, GpuSample):
            state.gpu.add(record)
        elif state.ended is None or state.ended.status == "done":
            state.ended = record
            if record.status == "failed" and record.message and not self.message:
                self.message = f"rank {record.rank}: {record.message}"

    def finish(self, status: str, now: float) -> None:
        """The run is over: ``done``, ``failed`` or ``interrupted``."""
        self.status = status
        self._finished = now

    def _started(self, row: int, state: _Rank, record: RunStarted, time: float) -> None:
        self.title = record.title or self.title
        # Totals may differ by rank for a moment: the longest one counts.
        if record.iterations is not None:
            self._iterations = max(record.iterations, self._iterations or 0)
        if record.epochs is not None:
            self._epochs = max(record.epochs, self._epochs or 0.0)
        if math.isnan(state.started):
            self._start_clock(row, state, time)

    def _start_clock(self, row: int, state: _Rank, time: float) -> None:
        if self._begin is None:
            self._begin = time
        state.started = time
        self._rates.start(row, max(0.0, time - self._begin))
        state.recent.append((time, 0))

    def _step(self, row: int, state: _Rank, step: Step, time: float) -> None:
        if math.isnan(state.started):
            self._start_clock(row, state, time)
        if step.iteration >= state.iteration:
            state.iteration = step.iteration
            if step.epoch is not None:
                state.epoch = step.epoch
        if not time <= state.stepped:
            state.stepped = time
        if step.samples is not None:
            state.samples += step.samples
            self._rates.add(row, time - self._begin, step.samples)
            self._remember(state, time)
        if step.values:
            bucket = self._bucket(step.iteration)
            for name, value in step.values.items():
                history = self._values.get(name)
                if history is None:
                    history = self._values[name] = ValueHistory(len(self.ranks), self._grid)
                history.add(row, bucket, step.iteration, value)

    def _bucket(self, iteration: int) -> int:
        bucket = self._grid.bucket(iteration)
        while bucket >= self._grid.capacity:
            for history in self._values.values():
                history.double()
            self._grid.double()
            bucket = self._grid.bucket(iteration)
        return bucket

    def _remember(self, state: _Rank, time: float) -> None:
        recent = state.recent
        if len(recent) > 1 and time - recent[-2][0] < 0.1:
            recent[-1] = (max(time, recent[-1][0]), state.samples)
            return
        recent.append((time, state.samples))
        while len(recent) > 2 and recent[1][0] < time - self._window:
            recent.popleft()

    # What is shown

    def snapshot(self, now: float) -> Snapshot:
        """What to show at ``now``."""
        over = self._finished is not None
        end = self._finished if self._finished is not None else now
        names = tuple(sorted(self._values, key=importance))
        latest = {name: self._values[name].latest() for name in names}
        rows = tuple(
            RankRow(
                rank=rank,
                lamp=self.lamp(rank, end),
                iteration=state.iteration,
                values=tuple(latest[name][row] for name in names),
                rate=self._rate(state, end),
                samples=state.samples,
                gpu=state.gpu.words(over),
            )
            for row, (rank, state) in enumerate(zip(self.ranks, self._state, strict=True))
        )
        rates = [row.rate for row in rows if not math.isnan(row.rate)]
        samples = sum(state.samples for state in self._state)
        average = self._average(samples)
        # What a failed rank reported last says nothing about the run now.
        alive = [s.ended is None or s.ended.status != "failed" for s in self._state]
        if not any(alive):
            alive = [True] * len(alive)
        slow = "" if over else warning(state.gpu for state in self._state)
        return Snapshot(
            title=self.title,
            status=self.status,
            ranks=self.ranks,
            names=names,
            means=tuple(_mean(compress(latest[name], alive)) for name in names),
            rows=rows,
            progress=self.progress(end),
            rate=sum(rates) if rates and not over else average,
            average=average,
            samples=samples,
            charts=self.charts(),
            message=self.message or self._not_finite() or slow,
        )

    def lamp(self, rank: int, now: float) -> Lamp:
        """What ``rank`` does at ``now``, or did when the run ended."""
        if self._finished is not None:
            now = min(now, self._finished)
        state = self._state[self._row[rank]]
        if state.ended is not None:
            return Lamp(state.ended.status, state.ended.message)
        heard = self._made if math.isnan(state.heard) else state.heard
        if now - heard > self._silent_after:
            return Lamp("silent", f"no word for {now - heard:.0f} s")
        if self._finished is not None:
            return Lamp("done" if self.status == "done" else "interrupted")
        beat = state.beat
        if beat is None:
            return Lamp("starting" if math.isnan(state.started) else "running")
        if beat.state == "idle" and state.stepped > state.beat_time:
            return Lamp("running")
        detail = f"in {beat.operation}" if beat.operation else ""
        if beat.where:
            detail = f"{detail} at {beat.where}".strip()
        if beat.state == "debugging":
            return Lamp("waiting", f"for a debugger's commands {detail}".strip())
        if beat.state == "waiting" and beat.seconds >= 1:
            detail = f"{detail} for {beat.seconds:.0f} s".strip()
        return Lamp(beat.state, detail)

    def progress(self, now: float) -> Progress:
        """How far the run is at ``now``."""
        begun = [state for state in self._state if state.iteration]
        end = now
        if self._finished is not None and begun:
            # What the cell did after the training is not the training.
            end = max(state.stepped for state in begun)
        elapsed = 0.0 if self._begin is None else max(0.0, end - self._begin)
        if not begun:
            return Progress(iterations=self._iterations, epochs=self._epochs, elapsed=elapsed)
        # Ranks that left early or fell silent must not hold the bar back.
        present = [s for s in begun if s.ended is None and now - s.heard <= self._silent_after]
        slowest = present or begun
        iteration = min(state.iteration for state in slowest)
        epochs = [state.epoch for state in slowest if state.epoch is not None]
        epoch = min(epochs) if epochs else None
        fraction = None
        if self._iterations:
            fraction = min(1.0, iteration / self._iterations)
        elif self._epochs and epoch is not None:
            fraction = min(1.0, epoch / self._epochs)
        stepped = max(state.stepped for state in slowest)
        return Progress(
            iteration=iteration,
            iterations=self._iterations,
            epoch=epoch,
            epochs=self._epochs,
            fraction=fraction,
            eta=self._eta(fraction, stepped, now),
            elapsed=elapsed,
        )

    def _eta(self, fraction: float | None, stepped: float, now: float) -> float | None:
        if fraction is None or self._begin is None:
            return None
        if fraction >= 1 or self._finished is not None:
            return 0.0
        pace = self._pace
        if not pace:
            pace.append((self._begin, 0.0))
        if fraction > pace[-1][1] and stepped - pace[-1][0] >= 0.2:
            pace.append((stepped, fraction))
            # Recent enough to follow a change of pace, long enough to be calm.
            span = max(20.0, 0.2 * (stepped - self._begin))
            while len(pace) > 2 and pace[1][0] < stepped - span:
                pace.popleft()
        (start, done), (stop, reached) = pace[0], pace[-1]
        if reached <= done:
            return None
        # Not from the first: what comes before a first step is longer than a step.
        usual = max(b - a for (a, _), (b, _) in itertools.pairwise(list(pace)[len(pace) > 2 :]))
        waited = now - stop
        if waited > max(_OVERDUE, 3 * usual):
            return None  # nothing moves, and nobody knows for how long
        return max(0.0, (1 - fraction) * (stop - start) / (reached - done) - min(waited, usual))

    def _rate(self, state: _Rank, now: float) -> float:
        if len(state.recent) < 2:
            return math.nan
        if self._finished is not None:
            spent = state.stepped - state.started
            return state.samples / spent if spent > 0 else math.nan
        if state.ended is not None:
            return math.nan
        (start, before), (stop, after) = state.recent[0], state.recent[-1]
        # A stalled rank slows down on the board once a step is overdue.
        grace = max(1.0, 2 * (stop - start) / (len(state.recent) - 1))
        stop = max(stop, now - grace)
        return (after - before) / (stop - start) if stop > start else math.nan

    def _average(self, samples: int) -> float:
        stepped = [state.stepped for state in self._state if not math.isnan(state.stepped)]
        if not stepped or self._begin is None or max(stepped) <= self._begin or not samples:
            return math.nan
        return samples / (max(stepped) - self._begin)

    def _not_finite(self) -> str:
        for name, history in self._values.items():
            found = {
                self.ranks[row]: (history.first_not_finite_at[row], history.not_finite[row])
                for row in np.flatnonzero(history.not_finite)
            }
            if found:
                return not_finite(label(name), found)
        return ""

    def charts(self) -> tuple[Chart, ...]:
        """One chart per kind of value (``main/loss`` and ``validation/main/loss``
        are one kind), the loss first, and the throughput in second place."""
        groups: dict[str, list[str]] = {}
        for name in sorted(self._values, key=importance):
            groups.setdefault(kind(name), []).append(name)
        charts = [self._value_chart(key, names) for key, names in groups.items()]
        if any(state.samples for state in self._state):
            charts.insert(1, self._rate_chart())
        return tuple(charts)

    def _left(self) -> np.ndarray:
        """Per rank, whether it left by itself; one that was interrupted lacks its part."""
        ends = [state.ended for state in self._state]
        return np.array([end is not None and end.status in ("done", "failed") for end in ends])

    def _value_chart(self, key: str, names: list[str]) -> Chart:
        histories = [self._values[name] for name in names]
        left = self._left()
        # Before its first step one cannot tell what a rank is going to report.
        awaited = np.array([not s.iteration for s in self._state]) & ~left
        filled = histories[0].filled()
        x, ranks = histories[0].curves(filled)
        _, mean = histories[0].means(filled, left, awaited)
        others = []
        for history in histories[1:]:
            other_x, other = history.means(history.filled(), left, awaited)
            # On the grid of the first, so that one table of points holds them all.
            others.append(
                np.interp(x, other_x, other, left=np.nan, right=np.nan)
                if other_x.size
                else np.full(len(x), np.nan)
            )
        return Chart(key, tuple(names), x, ranks, mean, tuple(others))

    def _rate_chart(self) -> Chart:
        time, ranks, mean, total = self._rates.curves(self._left())
        unit, seconds = "s", 1.0
        if time.size and time[-1] > 3 * 3600:
            unit, seconds = "h", 3600.0
        elif time.size and time[-1] > 300:
            unit, seconds = "min", 60.0
        x, label = time / seconds, f"time ({unit})"
        return Chart(THROUGHPUT, (THROUGHPUT,), x, ranks, mean, (), label, total)


def _mean(values: Iterable[float | None]) -> float | None:
    reported = [value for value in values if value is not None]
    finite = [value for value in reported if math.isfinite(value)]
    if finite:
        return sum(finite) / len(finite)
    return math.nan if reported else None
