"""Ranks talk: one public :class:`Communicator` over a backend.

Bottom up: :mod:`~nbmn.communicators.waiting` (the one way to wait),
:mod:`~nbmn.communicators.meetings` (words that ranks of one host show each other),
:mod:`~nbmn.communicators.ledger` (what was begun on an MPI communicator),
:mod:`~nbmn.communicators.link` (a hold on one, which outlives it),
:mod:`~nbmn.communicators.rounds` (how all ranks bring to an end what they were in),
:mod:`~nbmn.communicators.world` (all links, and their renewal),
:mod:`~nbmn.communicators.recorder` (what this rank talks about, for others to read),
:mod:`~nbmn.communicators.transport` and :mod:`~nbmn.communicators.objects` (bytes, arrays,
objects), :mod:`~nbmn.communicators.agreement` (checks that all ranks share),
:mod:`~nbmn.communicators.models` (values and gradients),
:mod:`~nbmn.communicators.device_backend` (what is on GPUs), and the communicator.
"""

from nbmn.communicators.activity import Activity
from nbmn.communicators.communicator import Communicator
from nbmn.communicators.errors import (
    BrokenCommunicatorError,
    CollectiveTimeoutError,
    CommunicatorError,
    MismatchError,
    NcclError,
    RemoteRankError,
)
from nbmn.communicators.factory import create_communicator
from nbmn.communicators.recordings import Entry, read_recorder
from nbmn.communicators.world import World, current_activity, world

__all__ = [
    "Activity",
    "BrokenCommunicatorError",
    "CollectiveTimeoutError",
    "Communicator",
    "CommunicatorBase",
    "CommunicatorError",
    "Entry",
    "MismatchError",
    "NcclError",
    "RemoteRankError",
    "World",
    "create_communicator",
    "current_activity",
    "read_recorder",
    "world",
]

CommunicatorBase = Communicator
"""ChainerMN's name for what every communicator is."""
