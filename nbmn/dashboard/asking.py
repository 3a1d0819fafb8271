"""Answers the button on a board that asks where the ranks are."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from ipywidgets import Widget

from nbmn.compat.busy_kernel import PRESS

__all__ = ["Asking"]


class Asking:
    """Answers presses until :meth:`close`, in a thread of its own.

    A press may arrive in any thread of the kernel and only sets an event: ranks are waited
    for, a silent one for seconds.

    Parameters
    ----------
    widget : ipywidgets.Widget
        Whose page sends presses and gets the answers.
    ask : callable
        Returns the answer as HTML.
    """

    def __init__(self, widget: Widget, ask: Callable[[], str]) -> None:
        self._widget = widget
        self._ask = ask
        self._pressed = threading.Event()
        self._closed = False
        widget.on_msg(self._hear)
        threading.Thread(target=self._answer, name="board where", daemon=True).start()

    def close(self) -> None:
        """Answer no more."""
        self._closed = True
        self._pressed.set()

    def _hear(self, widget: Widget, content: Any, buffers: Any) -> None:
        if isinstance(content, dict) and PRESS in content:
            self._pressed.set()

    def _answer(self) -> None:
        while self._pressed.wait() and not self._closed:
            self._pressed.clear()
            try:
                answer = {"html": self._ask()}
            except Exception as error:
                # Such as of ranks that end at this moment. The next press asks anew.
                logging.getLogger(__name__).info("a press was not answered", exc_info=True)
                answer = {"error": f"{type(error).__name__}: {error}"}
            # Not as state: a notebook that is opened again has no use for where ranks were.
            self._widget.send(answer)
