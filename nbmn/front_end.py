"""The program in which the running cell was typed: what it can show, and what it cannot.

The protocol of Jupyter says nothing of it; what is known here was seen in each program.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import psutil

__all__ = ["NOTEBOOK", "TERMINAL", "VS_CODE", "FrontEnd", "front_end"]


@dataclass(frozen=True)
class FrontEnd:
    """What a front end does."""

    redraws: bool
    """It replaces a display in place; else only what is shown for the first time is seen."""
    keeps_answers: bool
    """What a person has typed at a prompt can still be read afterwards."""


NOTEBOOK = FrontEnd(redraws=True, keeps_answers=True)
TERMINAL = FrontEnd(redraws=False, keeps_answers=True)
VS_CODE = FrontEnd(redraws=True, keeps_answers=False)

# They take no ``update_display_data``.
_CONSOLES = frozenset(
    {"jupyter-console", "jupyter_console", "jupyter-qtconsole", "qtconsole", "spyder"}
)
_SENT_FROM_PYTHON = re.compile(r"_(\d+)_\d+$")
"""A message's id as jupyter_client makes it; it ends with the process and a count."""


def front_end() -> FrontEnd:
    """Of the cell that runs now; a terminal where there is no kernel. Local."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    kernel = getattr(shell, "kernel", None)
    return TERMINAL if kernel is None else _of(kernel.get_parent("shell"))


def _of(request: Mapping[str, Any]) -> FrontEnd:
    """Of a message that asks to run a cell."""
    # The cell's address there, such as vscode-notebook-cell:…
    if str(request.get("metadata", {}).get("cellId", "")).startswith("vscode"):
        return VS_CODE
    sender = _SENT_FROM_PYTHON.search(request.get("header", {}).get("msg_id", ""))
    return TERMINAL if sender and _is_console(int(sender[1])) else NOTEBOOK


def _is_console(process: int) -> bool:
    try:
        words = psutil.Process(process).cmdline()
    except psutil.Error:
        return False  # on another host
    # The interpreter, then a script's path, or -m and a module's.
    return any(_CONSOLES & set(PurePath(word).parts[-2:]) for word in words[:3])
