"""Gathers what one rank puts out, message by message, as a notebook would show it."""

from __future__ import annotations

import threading
from typing import Any

from nbmn.cluster.long_text import LongText
from nbmn.cluster.output import RankOutput


class Capture:
    """Called with each IOPub message of a call, in the client's thread.

    Keeps text exactly as it was written (of a very long one the beginning and the end), and
    carries out what ranks say about earlier output: displays that are updated, output that is
    cleared.
    """

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.complete = threading.Event()
        """Set when no more output will come."""
        self._lock = threading.Lock()
        self._reset()
        self._clear_at_next = False

    def _reset(self) -> None:
        self._text = {"stdout": LongText(), "stderr": LongText()}
        self._displays: list[tuple[str | None, dict[str, Any]]] = []
        self._result: dict[str, Any] | None = None
        self._errors: list[str] = []

    def __call__(self, message: dict[str, Any]) -> None:
        kind, content = message["header"]["msg_type"], message["content"]
        with self._lock:
            if kind == "clear_output":
                self._clear_at_next = bool(content.get("wait"))
                if not self._clear_at_next:
                    self._reset()
            elif kind == "update_display_data":
                self._update(content)
            elif kind == "error" and content["ename"] != "SystemExit":
                self._errors += content["traceback"]
            elif kind in ("stream", "display_data", "execute_result"):
                if self._clear_at_next:
                    self._clear_at_next = False
                    self._reset()
                self._add(kind, content)

    def _add(self, kind: str, content: dict[str, Any]) -> None:
        if kind == "stream":
            self._text[content["name"]].add(content["text"])
        elif kind == "display_data":
            self._displays.append((_display_id(content), _bundle(content)))
        else:
            self._result = _bundle(content)

    def _update(self, content: dict[str, Any]) -> None:
        name = _display_id(content)
        self._displays = [
            (each, _bundle(content) if each == name else old) for each, old in self._displays
        ]

    def output(self, note: str = "", errors: bool = True) -> RankOutput:
        """What there is so far, with a last word of ours on stderr.

        ``errors`` are those that did not fail the cell, such as a script's under ``%run``.
        """
        with self._lock:
            stdout, stderr = self._text["stdout"].read(), self._text["stderr"].read()
            if errors and self._errors:
                stderr += "\n".join([*self._errors, ""])
            displays = tuple(bundle for _, bundle in self._displays)
            gaps = self._text["stdout"].gap, self._text["stderr"].gap
            return RankOutput(self.rank, stdout, stderr + note, displays, self._result, gaps)


def _display_id(content: dict[str, Any]) -> str | None:
    return content.get("transient", {}).get("display_id")


def _bundle(content: dict[str, Any]) -> dict[str, Any]:
    """Without the display's id, which differs between ranks that show the same."""
    return {"data": content["data"], "metadata": content.get("metadata", {})}
