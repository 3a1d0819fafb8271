"""Records the calls of a communicator's methods, and keeps account of how they end."""

from __future__ import annotations

import functools
import operator
import sys
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from nbmn.communicators.recordings import Activity
from nbmn.communicators.verification import verifies, verify

__all__ = ["Activity", "collective", "collective_over"]

_frame = sys._getframe
_ident = threading.get_ident

_MESSAGES = {
    "send": ("data", "dest", "tag"),
    "recv": ("source", "tag"),
    "send_obj": ("obj", "dest", "tag"),
    "recv_obj": ("source", "status", "tag"),
}
"""Methods in which one other rank takes part, and their parameters."""

_NAMED = frozenset({"agree", "scatter_parts"})
"""Methods whose first argument says what the user called."""

_Method = TypeVar("_Method", bound=Callable[..., Any])


def collective(method: _Method) -> _Method:
    """Record calls of a method in ``self.track``; of a thread's nested calls only the outermost.

    ``self._link``, where there is one, is broken if the call is left in the midst.
    """
    return _recorded(method, None)


def collective_over(attribute: str) -> Callable[[_Method], _Method]:
    """Like :func:`collective`, recorded and counted as a call on another link of ``self``."""
    return functools.partial(_recorded, over=attribute)


def _recorded(method: _Method, over: str | None) -> _Method:
    name = method.__name__
    counts = name not in _MESSAGES
    named = name in _NAMED

    @functools.wraps(method)
    def recorded(self: Any, *args: Any, **kwargs: Any) -> Any:
        track = self.track
        call = track.calls.get(_ident()) or track.here()
        if call.busy:
            return method(self, *args, **kwargs)
        link = getattr(self, "_link", None)
        steps = 0
        try:
            frame = _frame(1)
            peer, tag = (0, 0) if counts else _ends(name, args, kwargs)
            data = args[0] if args else None
            counted = link if over is None else getattr(self, over)
            what = str(data) if named and data else name
            track.begin(what, counted, data, frame, counts=counts, peer=peer, tag=tag, call=call)
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
            call.busy = False
            track.end(call)

    return recorded  # type: ignore[return-value]


def _ends(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, int]:
    """Return a message's peer and tag as the recorder takes them."""
    given = {**dict(zip(_MESSAGES[name], args, strict=False)), **kwargs}
    tag = given.get("tag", None if name == "recv_obj" else 0)
    return _plus_one(given.get("dest", given.get("source"))), _plus_one(tag)


def _plus_one(value: Any) -> int:
    try:
        number = operator.index(value)
    except TypeError:  # none is given, or it is refused later
        return 0
    return number + 1 if 0 <= number < 0xFFFF else 0  # wildcards are negative
