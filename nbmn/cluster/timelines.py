"""Asks ranks what they did in their last steps."""

from __future__ import annotations

from collections.abc import Sequence

from nbmn.cluster.listener import await_answers
from nbmn.cluster.session import Session
from nbmn.records import Timeline

PATIENCE = 2.0
"""Seconds that ranks have to answer; one whose interpreter is held never does."""


def trace(session: Session, steps: int, ranks: Sequence[int]) -> list[Timeline]:
    """The last steps of ranks, also while they run a cell and if they are stuck.

    Returns
    -------
    list of Timeline
        In rank order; ranks that did not answer are left out.
    """
    listener = session.listener
    listener.ask_trace(ranks, steps)
    told = await_answers(listener.timelines, ranks, PATIENCE)
    return [told[rank] for rank in ranks if rank in told]


def one_host(session: Session, ranks: Sequence[int]) -> bool:
    """Whether these ranks share a clock."""
    return len({session.ranks[rank].host for rank in ranks}) == 1
