"""What can go wrong between ranks."""

from __future__ import annotations


class CommunicatorError(RuntimeError):
    """Base of the errors that communicators raise."""


class BrokenCommunicatorError(CommunicatorError):
    """The communicator was left in the middle of a collective and must be renewed first."""


class CollectiveTimeoutError(CommunicatorError, TimeoutError):
    """The other ranks did not arrive before the deadline, or cannot ever arrive."""


class MismatchError(CommunicatorError, ValueError):
    """The ranks called a collective with arguments that do not fit together."""


class NcclError(CommunicatorError):
    """NCCL could not be started, or failed."""


class RemoteRankError(CommunicatorError):
    """Another rank failed before the collective could begin."""
