"""The stop button, pressed on a cell: interrupts its ranks, and kills those that do not answer."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NoReturn

from nbmn.cluster.errors import ClusterError, RanksInterrupted, unanswered
from nbmn.debug.diagnosis import whereabouts
from nbmn.ranks import name_ranks

if TYPE_CHECKING:
    from nbmn.cluster.cells import CellRun

INTERRUPT_PATIENCE = 5.0
"""Seconds the ranks have to answer an interrupt."""
HINT = 1.0
"""Seconds after which it is said that they have not."""
COUNTDOWN = 3.0
"""Seconds between the second press of the stop button and the end of ranks that do not answer."""
DEATH_PATIENCE = 10.0
"""Seconds that killed ranks have to end."""
PRESS_MEMORY = 30.0
"""Seconds in which a second press follows the first; later it is a first one again."""
LOOK = 0.1
"""Seconds between two looks at ranks that are about to be killed."""


class Presses:
    """What the person did to stop one cell, and when."""

    def __init__(self, run: CellRun) -> None:
        self._run = run
        self._told: dict[int, float] = {}
        """When the person has last interrupted them, by rank."""

    def tell(self, ranks: Iterable[int]) -> None:
        """Take note that ranks were interrupted."""
        self._told.update(dict.fromkeys(ranks, time.monotonic()))

    def late(self, ranks: Iterable[int] | None = None) -> list[int]:
        """Of these ranks (of all), those that were interrupted a moment ago and still run.

        Not those of long ago: the user's code may have caught the KeyboardInterrupt.
        """
        since = time.monotonic() - PRESS_MEMORY
        chosen = self._run.ranks if ranks is None else ranks
        told = {rank for rank in chosen if self._told.get(rank, -math.inf) > since}
        return [rank for rank in self._run.running() if rank in told]

    def unanswered(self, ranks: Iterable[int] | None = None) -> str:
        """Say which ranks did not answer an interrupt, and where they are."""
        late = self.late(ranks)
        states = self._run.states()
        where = {rank: whereabouts(states[rank]) for rank in late}
        first = min((self._told[rank] for rank in late), default=0.0)
        return unanswered(where, time.monotonic() - first)

    def stop(self) -> NoReturn:
        """Interrupt the ranks, give them time to answer, and raise what became of it.

        Raises
        ------
        RanksInterrupted
            They answered, or the cell had not reached them yet.
        ClusterError
            They did not, or were killed after another Ctrl-C.
        """
        run = self._run
        run.interrupt()
        try:
            stopped = run.wait_for_end(HINT)
            if not stopped:
                run.announce(self._hint())
                stopped = run.wait_for_end(INTERRUPT_PATIENCE - HINT)
        except KeyboardInterrupt:
            self.kill_late(run.announce)
            stopped = True
        if not stopped and self.late():
            raise ClusterError(self.unanswered()) from None
        raise RanksInterrupted(run.ranks, run.running()) from None

    def _hint(self) -> str:
        late = self.late()
        if not late:
            return "the ranks are not ready for this cell yet; it will not run"
        return (
            f"{name_ranks(late)} {_have(late)} not answered the interrupt yet; stop once more to "
            "kill what does not answer"
        )

    def kill_late(self, show: Callable[[str], None], ranks: Iterable[int] | None = None) -> None:
        """Kill ranks that do not answer an interrupt before a countdown ends; it is shown.

        Returns if they do, or if they were told nothing yet.

        Raises
        ------
        ClusterError
            They were killed; or a Ctrl-C stopped the countdown.
        """
        run = self._run
        until = time.monotonic() + COUNTDOWN
        late = self.late(ranks)
        try:
            while late := [rank for rank in late if rank in run.running()]:
                left = until - time.monotonic()
                if left <= 0:
                    break
                show(
                    f"{name_ranks(late)} {_have(late)} not answered; killed in "
                    f"{math.ceil(left)} s, and all ranks end with that (stop once more to prevent "
                    "it)"
                )
                run.wait_for_end(min(left, LOOK))
        except KeyboardInterrupt:
            raise ClusterError(f"nothing was killed: {self.unanswered(ranks)}") from None
        finally:
            show("")
        if late:
            run.kill(late)
            run.wait_for_end(DEATH_PATIENCE)
            raise run.trouble or ClusterError(f"{name_ranks(late)} cannot be killed")


def _have(ranks: Sequence[int]) -> str:
    return "has" if len(ranks) == 1 else "have"
