"""What crosses from a rank to the notebook: one frozen dataclass per kind.

Records travel as JSON, in batches: ``encode`` and ``decode`` are each other's
inverse. Times are seconds since the epoch on the rank's clock (``time.time``).
``run`` names the cell execution a record belongs to; one run is one board.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any


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
    """A rank has left the run.

    ``status`` is ``done``, ``failed`` or ``interrupted``. Of a rank whose process is no more
    the notebook tells: ``killed``, ``exited`` or ``ended``, by or with what is the message.
    """

    rank: int
    run: str
    time: float
    status: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class Wait:
    """A collective or message that a rank is in."""

    sequence: int
    """Counts what the rank has begun: the same number is the same call."""
    link: str
    """Names the communicator, alike on all its ranks; empty for none."""
    number: int
    """Counts the collectives on that communicator, from 1; 0 for messages."""
    members: tuple[int, ...]
    """Ranks of the communicator, in its own order; empty where all take part."""
    peer: int | None = None
    """The other end of a message; None for collectives, and for a message from any rank."""
    tag: int | None = None
    """Of a message; None for any."""
    nbytes: int = 0
    dtype: str = ""
    made: int = 0
    """Counts the communicators made of these members, from 1; 0 while it is being made."""
    nth: int = 0
    """Counts the collectives on that communicator within the cell, from 1; 0 for what is none."""


@dataclass(frozen=True, slots=True)
class Busy:
    """Another thread of a rank than its main one, which runs the user's code or waits for ranks."""

    thread: str
    """Its name."""
    where: str = ""
    """The user's line, such as ``cell [12] line 3``."""
    operation: str = ""
    """The collective it waits in, such as ``barrier``; empty while it runs."""
    seconds: float = 0.0
    """How long it has waited."""
    wait: Wait | None = None
    """More about what it waits in."""
    joined: bool = False
    """The main thread waits for its end, or its result, and for nothing else."""
    talks: bool = False
    """It has called something of a communicator's before."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A rank is alive, and what it does now.

    ``state`` is ``idle`` (between cells), ``running`` (the user's code),
    ``waiting`` (in a collective or message, for other ranks) or ``debugging`` (at a
    prompt, for the person).
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
    blocked: str = ""
    """What the system does for it meanwhile, such as ``reads /data/train.bin``, or which of MPI's
    calls the user's code is in, such as ``calls MPI.COMM_WORLD.Barrier()``; often nothing."""
    wait: Wait | None = None
    """More about what it waits in."""
    begun: dict[str, int] = field(default_factory=dict)
    """Collectives that it has begun, by communicator (as :attr:`Wait.link`)."""
    threads: tuple[Busy, ...] = ()
    """Other threads that may yet call something; between cells too."""


@dataclass(frozen=True, slots=True)
class Frame:
    """A function that was called and has not returned."""

    place: str
    """The line it has come to, such as ``cell [12] line 3``."""
    function: str
    source: str = ""
    """The text of that line, where it is known."""


@dataclass(frozen=True, slots=True)
class Stack:
    """What a rank's main thread is in: the answer to the question where it is."""

    rank: int
    run: str
    time: float
    frames: tuple[Frame, ...]
    """Of the cell, the outermost first; empty between cells."""
    beat: Heartbeat
    """What it does there."""


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of time in which a rank did one thing."""

    name: str
    """A phase such as ``forward``, or a collective or message such as ``allreduce``."""
    begin: float
    """``time.monotonic()`` of the rank's host."""
    end: float | None
    """None while it lasts."""
    where: str
    """The user's line, such as ``cell [12] line 3``."""
    link: str = ""
    """Names the communicator; empty for a phase."""
    number: int = 0
    """Counts the collectives on that communicator, alike on all ranks; 0 for messages."""
    nbytes: int = 0
    nth: int = 0
    """Counts the collectives on that communicator within the cell, from 1; 0 for messages."""


@dataclass(frozen=True, slots=True)
class Group:
    """The ranks of a communicator."""

    link: str
    """Names it, as :attr:`Span.link`."""
    members: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Timeline:
    """What a rank did in its last steps: the answer to the question for it."""

    rank: int
    run: str
    """The one that is told of: the last in which it did something."""
    time: float
    clock: float
    """``time.monotonic()`` of the rank's host at ``time``."""
    spans: tuple[Span, ...]
    """By begin."""
    ends: tuple[float, ...] = ()
    """When its steps ended; none where the run marks none, and is told as a whole."""
    groups: tuple[Group, ...] = ()
    """Communicators of these spans, as far as they are still there."""


@dataclass(frozen=True, slots=True)
class Said:
    """What a rank that is debugged has printed, or a question to the person."""

    rank: int
    run: str
    time: float
    text: str
    question: int = 0
    """Counts its questions, from 1: what was printed of the current line is the prompt."""
    last: bool = False
    """Whether nothing comes after it."""


@dataclass(frozen=True, slots=True)
class GpuSample:
    """What a rank's GPU does; None, or nothing, where the driver does not tell."""

    rank: int
    run: str
    time: float
    used: int | None = None
    """Bytes of its memory that are in use, whoever uses them."""
    total: int | None = None
    """Bytes of its memory."""
    utilisation: int | None = None
    """Percent of the last moment in which it computed anything."""
    temperature: int | None = None
    """Degrees Celsius."""
    link: str = ""
    """How it is connected, such as ``NVLink ×18``."""
    slowed: str = ""
    """Why it runs slower than it could: ``heat`` or ``power``."""
    problem: str = ""
    """Why nothing is known of it."""


Record = RunStarted | Step | RunEnded | Heartbeat | Stack | Timeline | Said | GpuSample

_KINDS: dict[str, type] = {
    kind.__name__: kind
    for kind in (
        *(RunStarted, Step, RunEnded, Heartbeat, Stack, Said, Timeline, GpuSample),
        *(Wait, Busy, Frame, Span, Group),
    )
}
# Not dataclasses.astuple: it copies deeply, ten times slower, and ranks encode every step.
_FIELDS = {kind: attrgetter(*(field.name for field in fields(kind))) for kind in _KINDS.values()}


def encode(records: Iterable[Record]) -> bytes:
    """Serialise records, in order, to one message."""
    return json.dumps([_row(record) for record in records], default=_row).encode()


def decode(message: bytes) -> list[Record]:
    """Read the records of one message.

    Raises
    ------
    ValueError
        The bytes are not a message that :func:`encode` made.
    """
    try:
        return [_record(row) for row in json.loads(message)]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"not a batch of records: {error}") from error


def _row(record: Any) -> tuple[str, tuple[Any, ...]]:
    return type(record).__name__, _FIELDS[type(record)](record)


def _record(row: Any) -> Any:
    kind, values = row
    return _KINDS[kind](*map(_value, values))


def _value(value: Any) -> Any:
    """A field's value; what is a list in JSON was a tuple, or a dataclass."""
    if not isinstance(value, list):
        return value
    if len(value) == 2 and isinstance(value[0], str) and isinstance(value[1], list):
        return _record(value)
    return tuple(map(_value, value))
