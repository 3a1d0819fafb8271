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


def name(done: Done) -> str:
    """What it is called, such as ``cell [12]``."""
    return (
        f"cell {done.label}"
        if isinstance(done, RanCell)
        else f"the push of {', '.join(done.names)}"
    )


def describe(journal: Sequence[Done]) -> str:
    """How much it is, such as ``3 cells and 1 push``."""
    cells = sum(isinstance(done, RanCell) for done in journal)
    pushes = len(journal) - cells
    said = [f"{cells} cell{'s' * (cells != 1)}"]
    if pushes:
        said.append(f"{pushes} push{'es' * (pushes > 1)}")
    return " and ".join(said)


class Journal:
    """What succeeded on the ranks that run, in order.

    Parameters
    ----------
    ahead
        What had succeeded on ranks before these, and is to be done again.
    """

    def __init__(self, ahead: Sequence[Done] = ()) -> None:
        self._done: list[Done] = []
        self.ahead = tuple(ahead)

    def add(self, done: Done) -> None:
        # Settled now and then, so that runs and their output are not kept.
        self._done = [*self.settled(), done]

    def advance(self) -> None:
        """Take note that the first of what is ahead was done again."""
        self.add(self.ahead[0])
        self.ahead = self.ahead[1:]

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

    def running(self) -> list[RanCell]:
        """Cells that have not ended."""
        return [d for d in self.settled() if isinstance(d, RanCell) and d.run is not None]

    def complete(self) -> list[Done]:
        """What can be done again: all that has succeeded, here or on ranks before these."""
        running = self.running()
        return [*(done for done in self.settled() if done not in running), *self.ahead]
