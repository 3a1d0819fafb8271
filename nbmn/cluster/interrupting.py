"""Stops cells on request: asks first, and kills ranks that do not answer when asked again."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from nbmn.cluster.errors import ClusterError
from nbmn.cluster.pressing import INTERRUPT_PATIENCE
from nbmn.cluster.session import Session
from nbmn.ranks import name_ranks

LOOK = 0.02


def interrupt(
    session: Session, ranks: Sequence[int], show: Callable[[str], None] = lambda text: None
) -> str:
    """Interrupt ranks that run cells; returns what became of it, in words.

    The second time, those that still have not answered are killed, after a countdown that
    is shown; a Ctrl-C stops it.

    Raises
    ------
    ClusterError
        Ranks did not answer, or were killed.
    """
    everyone = len(ranks) == session.size
    runs = [run for run in session.active if everyone or set(run.running()) & set(ranks)]
    late = sorted(rank for run in runs for rank in run.presses.late(ranks))
    if late:
        for run in runs:
            run.presses.kill_late(show, ranks)
        return f"{name_ranks(late)} {'has' if len(late) == 1 else 'have'} answered meanwhile"
    busy = sorted({rank for run in runs for rank in run.running() if rank in ranks})
    for run in runs:
        run.interrupt(ranks)
    if not busy:
        return "the cells that waited for their turn will not run" if runs else "no cell runs there"
    deadline = time.monotonic() + INTERRUPT_PATIENCE
    while any(run.presses.late(ranks) for run in runs):
        if time.monotonic() > deadline:
            raise ClusterError(
                "; ".join(run.presses.unanswered(ranks) for run in runs if run.presses.late(ranks))
            )
        time.sleep(LOOK)
    return f"interrupted {name_ranks(busy)}"
