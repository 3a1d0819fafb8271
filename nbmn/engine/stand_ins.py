"""What stands in on a rank for a terminal: it has no keyboard, and is not left by ``exit()``."""

from __future__ import annotations

import io
import os
from typing import Any

from nbmn.engine.refusal import Refusal

NOT_LEFT = "this ends the cell and not the rank; %mn_stop ends the ranks"
"""What a SystemExit does there."""


class NoKeyboardError(OSError):
    """The user's code has asked for input."""


class NoKeyboard(io.TextIOBase):
    """Standard input of a rank."""

    def readline(self, size: int = -1) -> str:  # type: ignore[override]
        raise NoKeyboardError(
            "a rank has no keyboard: ask in a cell of the notebook and %mn_push the answer; "
            "to debug a rank, run the cell with %%mn --debug RANK"
        )

    read = readline


class Exit:
    """``exit`` and ``quit``: they end the cell on this rank; the rank itself goes on."""

    def __call__(self, code: object = None) -> None:
        raise SystemExit if code is None else SystemExit(code)

    def __repr__(self) -> str:
        return "%mn_stop ends the ranks"


class BreakpointError(Refusal):
    """A breakpoint in a cell that opens no prompt."""


def no_breakpoint(*args: Any, **kwargs: Any) -> None:
    """What ``breakpoint()`` does in a cell that was not run with ``--debug``."""
    if os.environ.get("PYTHONBREAKPOINT") == "0":
        return
    raise BreakpointError(
        "breakpoint() on a rank needs a prompt: run the cell with %%mn --debug RANK; other ranks "
        "pass their breakpoints by"
    )
