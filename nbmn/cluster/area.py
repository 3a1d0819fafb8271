"""The place under a cell where ranks' output appears and grows."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import Protocol

from IPython.display import display, publish_display_data

from nbmn.cluster.output import LIVE_LINES, Group, RankOutput, group, render_html, render_text
from nbmn.front_end import front_end
from nbmn.ranks import name_ranks

PERIOD = 0.2
"""Seconds between two redraws at least."""
SHARE = 4
"""Of the time, a redraw takes no more than one part in so many: the kernel has other work."""
CHARACTERS_PER_SECOND = 1_500_000
"""What a page far away can take; what is more would arrive ever later."""


class Area(Protocol):
    """Shows ranks' output while a cell runs, and for good when it has ended.

    ``status`` is ``done``, ``failed`` or ``interrupted``; ``reported`` are the
    ranks whose last records have been sent, and may still be on their way;
    ``notice`` is something to say of the cell as a whole.
    """

    def update(self, outputs: Sequence[RankOutput], notice: str = "") -> None: ...
    def finish(
        self,
        outputs: Sequence[RankOutput],
        status: str,
        reported: Sequence[int] = (),
        notice: str = "",
    ) -> None: ...


class NotebookArea:
    """One display that is redrawn in place, then each group's rich output below it."""

    def __init__(self) -> None:
        self._id = ""
        self._drawn, self._rest = 0.0, PERIOD
        self._last: tuple[list[Group], str] = ([], "")

    def update(self, outputs: Sequence[RankOutput], notice: str = "") -> None:
        rest = self._rest if notice == self._last[1] else PERIOD
        if time.monotonic() - self._drawn < rest:
            return
        groups = group(outputs, running=True)
        if (groups, notice) != self._last:
            self._draw(groups, LIVE_LINES, notice)

    def finish(
        self,
        outputs: Sequence[RankOutput],
        status: str,
        reported: Sequence[int] = (),
        notice: str = "",
    ) -> None:
        groups = group(outputs)
        if groups or notice or self._id:
            self._draw(groups, None, notice)
        _publish_rich(groups)

    def _draw(self, groups: list[Group], lines: int | None, notice: str) -> None:
        self._last, began = (groups, notice), time.monotonic()
        text = render_text(groups, lines, notice)
        if not text and not self._id:
            return  # rich output only
        bundle = {"text/plain": text, "text/html": render_html(groups, lines, notice)}
        if self._id:
            display(bundle, raw=True, display_id=self._id, update=True)
        else:
            self._id = uuid.uuid4().hex
            display(bundle, raw=True, display_id=self._id)
        size = sum(map(len, bundle.values()))
        self._drawn = time.monotonic()
        self._rest = max(PERIOD, SHARE * (self._drawn - began), size / CHARACTERS_PER_SECOND)


class TerminalArea:
    """A terminal cannot redraw what has scrolled by: output is printed once the cell has ended."""

    def __init__(self) -> None:
        self._noticed = False

    def update(self, outputs: Sequence[RankOutput], notice: str = "") -> None:
        """Say at once that there is something to say, but not each second how long it lasts."""
        if notice and not self._noticed:
            print(notice)
        self._noticed = bool(notice)

    def finish(
        self,
        outputs: Sequence[RankOutput],
        status: str,
        reported: Sequence[int] = (),
        notice: str = "",
    ) -> None:
        groups = group(outputs)
        text = render_text(groups, notice=notice)
        if text:
            print(text)
        _publish_rich(groups)


def _publish_rich(groups: Sequence[Group]) -> None:
    for each in groups:
        for index, rich in enumerate(each.output.rich):
            if index == 0:
                _caption(name_ranks(each.ranks))
            publish_display_data(rich["data"], rich.get("metadata", {}))


def _caption(text: str) -> None:
    style = "font-size:11px;color:var(--jp-ui-font-color2,#767676)"
    bundle = {"text/plain": f"{text}:", "text/html": f'<div style="{style}">{text}</div>'}
    publish_display_data(bundle)


def make_area() -> Area:
    """The area for the cell that runs now: in place in a notebook, at the end in a terminal."""
    return NotebookArea() if front_end().redraws else TerminalArea()
