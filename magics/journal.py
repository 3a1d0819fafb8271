"""What succeeded on ranks, so that new ones can be brought to where those were."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from nbmn.cluster.cells import CellRun


@dataclass(frozen=True, slots=True)
class RanCell:
    """A cell that ran on ranks, or still does."""

    code: str
    ranks: tuple[str, ...]
    """As they were typed."""
    label: str
    run: CellRun | None = None
    """While it is not known to have succeeded."""


@dataclass(frozen=True, slots=True)
class Pushed:
    """Variables of the notebook that were sent."""

    names: tuple[str, ...]
    ranks: tuple[str, ...]


Done = RanCell | Pushed


def describe(journal: Sequence[Done]) -> str:
    """How much it is, such as ``3 cells and 1 push``."""
    cells = sum(isinstance(done, RanCell) for done in journal)
    pushes = len(journal) - cells
    said = [f"{cells} cell{'s' * (cells != 1)}"]
    if pushes:
        said.append(f"{pushes} push{'es' * (pushes > 1)}")
    return " and ".join(said)


class Journal:
    """What succeeded on the ranks that run, in order."""

    def __init__(self) -> None:
        self._done: list[Done] = []

    def add(self, done: Done) -> None:
        # Settled now and then, so that runs and their output are not kept.
        self._done = [*self.settled(), done]

    def settled(self) -> list[Done]:
        """All but the cells that failed or were stopped; those that still run have ``run``."""
        kept: list[Done] = []
        for done in self._done:
            if isinstance(done, RanCell) and done.run is not None and done.run.done():
                if done.run.status != "done":
                    continue
                done = replace(done, run=None)
            kept.append(done)
        return kept

    def complete(self) -> list[Done]:
        """What can be done again: all that has succeeded."""
        return [d for d in self.settled() if not (isinstance(d, RanCell) and d.run is not None)]
