"""What the notebook asks of a rank and what the rank answers.

These travel through ipyparallel's authenticated channel; the stream of
measurements is in :mod:`nbmn.records`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where the notebook listens for records, and the CURVE keys (Z85) to talk to it."""

    url: str
    server_key: bytes
    public_key: bytes
    secret_key: bytes


@dataclass(frozen=True, slots=True)
class RankInfo:
    """One rank, as it introduced itself when it was ready."""

    rank: int
    size: int
    local_rank: int
    host: str
    pid: int
    device: str
    """``CPU``, or the GPU's name and index such as ``GPU 1 (NVIDIA H200)``."""
    mpi: str
    """The MPI library, such as ``MPICH 5.0.2``."""
    box: int = -1
    """Its descriptor of the file for its stack, see :mod:`nbmn.engine.blackbox`; -1 for none."""
    lifeline: int = -1
    """Its descriptor of a pipe, see :mod:`nbmn.engine.lifeline`; -1 for none."""
    engine: int = -1
    """ipyparallel's id of the engine; filled in by the notebook, never shown."""


@dataclass(frozen=True, slots=True)
class CellRequest:
    """Run ``code`` as the cell called ``label``."""

    code: str
    label: str
    """The name in tracebacks, such as ``[12]``."""
    run: str
    """Marks this execution's records."""
    keep: bool = False
    """Send the value of the last expression back."""
    debug: int | None = None
    """The rank whose breakpoints open a prompt; others pass theirs by."""
    post_mortem: bool = False
    """Run no code, but open a prompt at the rank's last exception."""


@dataclass(frozen=True, slots=True)
class CellError:
    """An exception on a rank, as text: the notebook need not know its class."""

    name: str
    message: str
    where: str = ""
    """The user's line, such as ``cell [12] line 3``; empty when unknown."""
    traceback: str = ""
    """Formatted, with ANSI colours."""
    account: str = ""
    """Where the memory was, of an error that says that there was too little; its first line is
    a summary."""
    origin: CellError | None = None
    """The user's error that was on its way out when nbmn raised this one, in a ``finally``."""
    after_interrupt: bool = False
    """Whether it was raised because the rank had been interrupted."""
    in_cell: bool = True
    """Whether it passed through a line of the cell: of one that does not compile, no line ran."""


@dataclass(frozen=True, slots=True)
class Averaged:
    """How many means of gradients a rank has begun in the background of one communicator."""

    members: tuple[int, ...]
    """The ranks that average."""
    in_cell: int
    in_all: int
    """Since it was renewed last."""


@dataclass(frozen=True, slots=True)
class CellReply:
    """How a cell ended on one rank."""

    rank: int
    error: CellError | None = None
    value: bytes | None = None
    """The last expression, pickled, when the request said ``keep``."""
    reported: bool = False
    """Whether records of this cell are on their way, the last a :class:`nbmn.records.RunEnded`."""
    broken: bool = False
    """Whether a communicator on this rank was left in the middle of a call."""
    averaged: Mapping[int, Averaged] = field(default_factory=dict)
    """By communicator; empty where threads of the user's may go on with it."""
