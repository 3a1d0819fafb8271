"""What crosses from a rank to the notebook: one frozen dataclass per kind.

Records travel as JSON, in batches: ``encode`` and ``decode`` are each other's
inverse. Times are seconds since the epoch on the rank's clock (``time.time``).
``run`` names the cell execution a record belongs to; one run is one board.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, fields
from operator import attrgetter


@dataclass(frozen=True, slots=True)
class RunStarted:
    """A rank begins to train: what the progress bar is measured against."""

    rank: int
    run: str
    time: float
    title: str = ""
    iterations: int | None = None
    """Iterations in all, when known."""
    epochs: float | None = None
    """Epochs in all, when known."""


@dataclass(frozen=True, slots=True)
class Step:
    """What a rank reports of one training step."""

    rank: int
    run: str
    time: float
    iteration: int
    """Counted from 1."""
    values: dict[str, float]
    """Named scalars, such as ``loss``."""
    samples: int | None = None
    """Samples this rank processed in this step."""
    epoch: float | None = None
    """Epochs done, with the fraction of the current one."""


@dataclass(frozen=True, slots=True)
class RunEnded:
    """A rank has left the run; ``status`` is ``done``, ``failed`` or ``interrupted``."""

    rank: int
    run: str
    time: float
    status: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A rank is alive, and what it does now.

    ``state`` is ``idle`` (between cells), ``running`` (the user's code) or
    ``waiting`` (in a collective, for the other ranks).
    """

    rank: int
    run: str
    time: float
    state: str
    operation: str = ""
    """The collective it waits in, such as ``allreduce``."""
    where: str = ""
    """The user's line, such as ``cell [12] line 3``."""
    seconds: float = 0.0
    """How long it has been in this state."""


Record = RunStarted | Step | RunEnded | Heartbeat

_KINDS: dict[str, type] = {kind.__name__: kind for kind in (RunStarted, Step, RunEnded, Heartbeat)}
# Not dataclasses.astuple: it copies deeply, ten times slower, and ranks encode every step.
_FIELDS = {kind: attrgetter(*(field.name for field in fields(kind))) for kind in _KINDS.values()}


def encode(records: Iterable[Record]) -> bytes:
    """Serialise records, in order, to one message."""
    rows = [[type(record).__name__, _FIELDS[type(record)](record)] for record in records]
    return json.dumps(rows).encode()


def decode(message: bytes) -> list[Record]:
    """Read the records of one message.

    Raises
    ------
    ValueError
        The bytes are not a message that :func:`encode` made.
    """
    try:
        return [_KINDS[kind](*values) for kind, values in json.loads(message)]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"not a batch of records: {error}") from error
