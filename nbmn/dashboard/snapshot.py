"""What a board shows at one moment, as plain frozen data."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

__all__ = ["CROWD", "FEW", "THROUGHPUT", "Chart", "Lamp", "Progress", "RankRow", "Snapshot"]

CROWD = 8
"""More ranks than this share one colour, a band and a mean, instead of a colour each."""

FEW = 3
"""Up to this many, the mean lies behind the ranks' curves."""

THROUGHPUT = "samples/s"


@dataclass(frozen=True, slots=True)
class Lamp:
    """What a rank does, in one word.

    ``state`` is ``starting``, ``idle``, ``running``, ``waiting``, ``failed``,
    ``silent``, ``done``, ``interrupted``, ``killed``, ``exited`` or ``ended``; ``detail`` says
    more in a few words.
    """

    state: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class RankRow:
    """One line of the legend."""

    rank: int
    lamp: Lamp
    iteration: int
    values: tuple[float | None, ...]
    """Latest value per name of :attr:`Snapshot.names`; None where there is none."""
    rate: float
    """Samples per second lately, and over the whole run once it is over; NaN before
    there are two steps, and for a rank that has left a run that goes on."""
    samples: int
    gpu: str = ""
    """Memory, utilisation, temperature and link of its GPU, in words; nothing without one."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the run is, measured by the slowest rank that reports."""

    iteration: int = 0
    iterations: int | None = None
    epoch: float | None = None
    epochs: float | None = None
    fraction: float | None = None
    """Between 0 and 1; None while no total is known."""
    eta: float | None = None
    """Seconds to go; None while it cannot be told, and once a step is overdue."""
    elapsed: float = 0.0
    """Seconds since the run began; once it is over, until its last step."""


@dataclass(frozen=True, slots=True)
class Chart:
    """The curves of one chart.

    ``x`` has shape (points,), ``ranks`` (ranks, points), the others (points,);
    all float64, NaN where there is nothing to draw. The mean is NaN too where a rank
    that takes part has no value: it would be that of other ranks.
    """

    key: str
    names: tuple[str, ...]
    """The values shown: the first per rank, the others as their mean."""
    x: np.ndarray
    ranks: np.ndarray
    mean: np.ndarray
    others: tuple[np.ndarray, ...] = ()
    x_label: str = "iteration"
    total: np.ndarray | None = None
    """Sum over the ranks, of the throughput only; told in words, not drawn."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything a board shows at one moment."""

    title: str
    status: str
    ranks: tuple[int, ...]
    names: tuple[str, ...]
    means: tuple[float | None, ...]
    """Mean over the ranks that have not failed of their latest finite values, per name."""
    rows: tuple[RankRow, ...]
    progress: Progress
    rate: float
    """Samples per second of all ranks together, lately."""
    average: float
    """The same over the whole run."""
    samples: int
    charts: tuple[Chart, ...]
    message: str = ""
    """What went wrong, if anything: a rank's error, a value that is not finite, a hot GPU."""

    @property
    def on_gpus(self) -> bool:
        """Whether any rank has told of a GPU."""
        return any(row.gpu for row in self.rows)
