"""Whether ranks that ended a cell left others waiting in the background. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from nbmn.debug.diagnosis import Diagnosis, fewer
from nbmn.messages import Averaged
from nbmn.ranks import name_ranks


def uneven(averaged: Mapping[int, Mapping[int, Averaged]]) -> Diagnosis | None:
    """Who made fewer updates with double buffering than others, whose last mean never comes.

    A cell on all ranks of a communicator must begin equally many on each, or let some catch up with
    what others did in earlier cells. None while it goes on, or was on some ranks only.

    Parameters
    ----------
    averaged
        What each rank that ended the cell began, by communicator.
    """
    members = {code: one.members for each in averaged.values() for code, one in each.items()}
    for code, ranks in members.items():
        if not all(code in averaged.get(rank, {}) for rank in ranks):
            continue
        told = {rank: averaged[rank][code] for rank in ranks}
        counts = {rank: one.in_all for rank, one in told.items()}
        late = [rank for rank in sorted(ranks) if counts[rank] == min(counts.values())]
        ahead = [rank for rank in sorted(ranks) if rank not in late]
        gained = {rank: one.in_cell for rank, one in told.items()}
        if ahead and max(gained[rank] for rank in ahead) > max(gained[rank] for rank in late):
            has, wait = "has" if len(late) == 1 else "have", "wait" + "s" * (len(ahead) == 1)
            cause = (
                f"{name_ranks(late)} {has} finished the cell; {name_ranks(ahead)} {wait} in the "
                "background for the mean of a further update"
            )
            advice = fewer(late, ahead, counts, "optimizer.update")
            return Diagnosis("left", tuple(late), (), cause, advice)
    return None
