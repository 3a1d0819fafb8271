"""Says whether a step can be computed once more by the ranks of one optimizer alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import chainer

if TYPE_CHECKING:
    from nbmn.communicators import Communicator


class TalksToOthersError(Exception):
    """A computation needs ranks that know nothing of its being repeated."""


class Among(chainer.FunctionHook):
    """A context in which functions may talk to the ranks of one communicator only.

    Parts of a model may be on ranks of which each has an optimizer over fewer ranks: those of
    another optimizer do not repeat a step because this one's ranks do.
    """

    name = "nbmn.Among"

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm

    def forward_preprocess(self, function: Any, in_data: Any) -> None:
        """Called by Chainer before a function is computed.

        Raises
        ------
        TalksToOthersError
            The function would talk to ranks outside.
        """
        comm = getattr(function, "comm", None)
        is_within = getattr(comm, "is_within", None)
        if is_within is not None and not is_within(self._comm):
            raise TalksToOthersError
