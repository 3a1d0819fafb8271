"""What this rank did in its last steps, for the notebook. Local; any thread may ask."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from nbmn.engine.lines import describe
from nbmn.phases import Phase, phases
from nbmn.records import Span

if TYPE_CHECKING:
    from nbmn.communicators.recordings import Entry
    from nbmn.communicators.world import World

STEP = "update"
"""The phase that ends a step."""
UNMARKED = 4
"""Collectives and messages for a step, where nothing is marked."""
MOST = 2000
"""Spans that travel; the newest."""


class Tracer:
    """Gathers phases, and collectives and messages.

    Parameters
    ----------
    world
        Its communicators.
    """

    def __init__(self, world: World) -> None:
        self._world = world

    def spans(self, steps: int) -> tuple[Span, ...]:
        """The last ``steps`` steps, and what lasts."""
        return spans(phases().all(), self._world.recorder.entries(), steps)


def spans(marked: Sequence[Phase], entries: Sequence[Entry], steps: int) -> tuple[Span, ...]:
    """Put phases and communication of the last steps together, by begin.

    A step ends with an update. Where nothing is marked, it is what the recorder has.
    """
    ends = [each.end for each in marked if each.name == STEP and each.end is not None]
    since = ends[-steps - 1] if len(ends) > steps else 0.0
    done = [each.end for each in marked if each.end is not None]
    # What came after the last step (a diff, a push) is no part of it, unless it lasts.
    until = max(done) if done and not any(each.end is None for each in marked) else float("inf")
    found = [
        Span(each.name, each.begin, each.end, describe(each.file, each.line))
        for each in marked
        if each.end is None or each.end > since
    ]
    talk = entries if marked else entries[-UNMARKED * steps :]
    found += [
        Span(
            entry.operation,
            entry.begin,
            entry.end,
            describe(entry.file, entry.line),
            str(entry.link),
            entry.number,
            entry.nbytes,
        )
        for entry in talk
        if entry.end is None or (since < entry.end and entry.begin < until)
    ]
    return tuple(sorted(found, key=lambda span: span.begin)[-MOST:])
