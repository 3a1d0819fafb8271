"""What is known of the ranks' GPUs: now, and over the whole run once it has ended."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from nbmn.dashboard.text import ranks_in_words
from nbmn.records import GpuSample

__all__ = ["GpuHistory", "warning"]

GIB = 1 << 30
LINGER = 10.0
"""Seconds for which a warning stays: a GPU that is too hot slows down again and again."""
_REASONS = {"heat": "it is too hot", "power": "its power supply asks for it"}


@dataclass(slots=True)
class GpuHistory:
    """One rank's GPU."""

    last: GpuSample | None = None
    """The newest that tells anything."""
    problem: str = ""
    """Why there is none that is newer."""
    slow: GpuSample | None = None
    """The last one in which it was slowed down."""
    most: int = 0
    """Bytes that were in use at once, as far as was seen."""
    busy: int = 0
    """Sum of the utilisations."""
    times: int = 0
    """How many they are."""

    def add(self, sample: GpuSample) -> None:
        """Take in a sample."""
        self.problem = sample.problem
        if sample.problem:
            return
        self.last = sample
        if sample.slowed:
            self.slow = sample
        self.most = max(self.most, sample.used or 0)
        if sample.utilisation is not None:
            self.busy += sample.utilisation
            self.times += 1

    def words(self, over: bool) -> str:
        """Memory, utilisation, temperature and link; of a run that is over the peak and the mean.

        ``71.3/79.6 GiB · 96 % · 64 °C · NVLink ×18``; empty for a rank that has told of no GPU.
        """
        last = self.last
        if last is None or (self.problem and not over):
            return self.problem
        if over and self.most and last.total:
            average = f"{self.busy / self.times:.0f} % on average" if self.times else ""
            peak = f"peak {_gib(self.most)}/{_gib(last.total)} GiB"
            return _joined(self.problem, peak, average, last.link)
        memory = "–" if last.used is None else f"{_gib(last.used)}/{_gib(last.total or 0)} GiB"
        busy, heat = _told(last.utilisation, "%"), _told(last.temperature, "°C")
        return _joined(memory, busy, heat, last.link)


def warning(histories: Iterable[GpuHistory]) -> str:
    """Which ranks' GPUs run slower than they could."""
    slow: dict[str, list[GpuSample]] = {}
    for history in histories:
        last, sample = history.last, history.slow
        if last is not None and sample is not None and last.time - sample.time <= LINGER:
            slow.setdefault(sample.slowed, []).append(sample)
    return "; ".join(
        f"{ranks_in_words(sample.rank for sample in samples)}: "
        f"the GPU slows down, {_REASONS.get(why, why)}{_hottest(samples)}"
        for why, samples in slow.items()
    )


def _hottest(samples: list[GpuSample]) -> str:
    known = [sample.temperature for sample in samples if sample.temperature is not None]
    return f" ({max(known)} °C)" if known else ""


def _joined(*parts: str) -> str:
    return " · ".join(part for part in parts if part)


def _gib(nbytes: int) -> str:
    gib = nbytes / GIB
    return f"{gib:.1f}" if gib < 100 else f"{gib:.0f}"


def _told(value: int | None, unit: str) -> str:
    return "–" if value is None else f"{value} {unit}"
