"""Records the calls of a communicator's methods, and keeps account of how they end."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from nbmn.communicators.recordings import Activity
from nbmn.communicators.verification import verifies, verify

__all__ = ["Activity", "collective"]

_frame = sys._getframe

_MESSAGES = frozenset({"send", "recv", "send_obj", "recv_obj"})

_Method = TypeVar("_Method", bound=Callable[..., Any])


def collective(method: _Method) -> _Method:
    """Record calls of a method in ``self.track``; of nested calls only the outermost.

    ``self._link``, where there is one, is broken if the call is left in the midst.
    """
    name = method.__name__
    counts = name not in _MESSAGES

    @functools.wraps(method)
    def recorded(self: Any, *args: Any, **kwargs: Any) -> Any:
        track = self.track
        if track.busy:
            return method(self, *args, **kwargs)
        link = getattr(self, "_link", None)
        steps = 0
        try:
            frame = _frame(1)
            track.begin(name, link, args[0] if args else None, frame, counts=counts)
            if link is not None:
                steps = link.ledger.steps
                if counts and verifies(link):
                    verify(link, track.last(), method, (self, *args), kwargs)
            return method(self, *args, **kwargs)
        except BaseException as error:
            if link is not None:
                ledger = link.ledger
                interrupted = not isinstance(error, Exception)
                if ledger.open or (interrupted and (counts or ledger.steps != steps)):
                    link.fail(error)
            raise
        finally:
            # Not by a call: an interrupt that strikes when it begins would leave it undone.
            track.busy = False
            track.end()

    return recorded  # type: ignore[return-value]
