"""Numbers, times and states as a person reads them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

__all__ = [
    *("GLYPHS", "count", "duration", "headline", "importance", "kind", "label"),
    *("not_finite", "number", "ranks_in_words", "rate"),
]

_WAVES = 3
"""Iterations named, where ranks report values that are not finite one after another."""

GLYPHS = {
    "starting": "…",
    "idle": "○",
    "running": "►",
    "waiting": "‖",
    "failed": "✕",
    "silent": "?",
    "done": "✓",
    "interrupted": "■",
    "killed": "✕",
    "exited": "✕",
    "ended": "■",
}
"""A shape per state, so that no one needs to tell colours apart."""


def number(value: float | None) -> str:
    """A reported value, in four significant digits: ``0.3071``, ``12.50``, ``1.20e-06``."""
    if value is None:
        return "–"
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    size = abs(value)
    if size and not 1e-4 <= size < 1e5:
        return f"{value:.2e}"
    return f"{value:.{max(0, 4 if size < 1 else 3 - int(math.log10(size)))}f}"


def label(name: str) -> str:
    """A value's name for people: ``validation/main/loss`` is ``validation loss``."""
    return " ".join(part for part in name.split("/") if part != "main") or name


def kind(name: str) -> str:
    """What a value is, whoever reports it: of ``validation/main/loss`` the ``loss``."""
    return name.rsplit("/", 1)[-1]


def importance(name: str) -> tuple[bool, bool, bool]:
    """A key that sorts the loss before the rest, training before validation."""
    what = kind(name).lower()
    secondary = name.lower().startswith(("validation", "val", "valid", "test", "eval"))
    return what != "loss", not what.endswith("loss"), secondary


def rate(value: float) -> str:
    """Samples per second: ``3.14``, ``512``, ``12.3k``, ``1.05M``."""
    if not math.isfinite(value):
        return "–"
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= size:
            scaled = value / (1e3 if unit == "k" else size)
            return f"{scaled:.{2 if scaled < 10 else 1 if scaled < 100 else 0}f}{unit}"
    return f"{value:,.{0 if value >= 100 else 1 if value >= 10 else 2}f}"


def count(value: int) -> str:
    """A whole number with thousands separated."""
    return f"{value:,}"


def ranks_in_words(ranks: Iterable[int]) -> str:
    """``rank 3``, ``ranks 0, 1``, ``ranks 0–5, 7``."""
    stretches: list[list[int]] = []
    for rank in sorted(ranks):
        if stretches and rank == stretches[-1][-1] + 1:
            stretches[-1].append(rank)
        else:
            stretches.append([rank])
    several = len(stretches) > 1 or len(stretches[0]) > 1
    words = []
    for first, *rest in stretches:
        dash = "–" if len(rest) > 1 else ", "
        words.append(f"{first}{dash}{rest[-1]}" if rest else f"{first}")
    return f"rank{'s' if several else ''} {', '.join(words)}"


def not_finite(what: str, found: Mapping[int, tuple[int, int]]) -> str:
    """Who began to report values that are not finite, and who followed.

    Gradients carry a NaN from one rank to all, an iteration later.

    Parameters
    ----------
    found
        By rank: the first such iteration, and how many there are.
    """
    waves: dict[int, list[int]] = {}
    for rank, (first, _) in sorted(found.items(), key=lambda item: item[1][0]):
        waves.setdefault(first, []).append(rank)
    said = []
    for first, ranks in list(waves.items())[:_WAVES]:
        when = "at" if all(found[rank][1] == 1 for rank in ranks) else "from"
        verb = f" {when}" if said else f": {what} not finite, {when} iteration"
        said.append(f"{ranks_in_words(ranks)}{verb} {count(first)}")
    later = [rank for ranks in list(waves.values())[_WAVES:] for rank in ranks]
    return "; ".join([*said, *([f"{ranks_in_words(later)} later"] if later else [])])


def duration(seconds: float) -> str:
    """``0:07``, ``12:30``, ``3:05:00``, ``2 d 03:00``."""
    whole = int(seconds + 0.5)
    minutes, second = divmod(whole, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days} d {hour:02d}:{minute:02d}"
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"


def headline(
    iteration: int,
    iterations: int | None,
    epoch: float | None,
    epochs: float | None,
    elapsed: float,
    eta: float | None,
    running: bool,
) -> list[str]:
    """The parts of the progress line."""
    parts = []
    if iteration or iterations:
        of = f" of {count(iterations)}" if iterations else ""
        parts.append(f"iteration {count(iteration)}{of}")
    if epoch is not None or epochs:
        of = f" of {epochs:g}" if epochs else ""
        parts.append(f"epoch {epoch or 0:.1f}{of}")
    parts.append(f"{duration(elapsed)} elapsed" if running else f"trained {duration(elapsed)}")
    if running and eta is not None:
        parts.append(f"{duration(eta)} to go")
    return parts
