"""What a cell failed of, from how it ended on each rank. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from nbmn.cluster.errors import ClusterError, RanksFailed, RanksStuck, describe, fold, was_freed
from nbmn.debug.diagnosis import Diagnosis
from nbmn.messages import CellError
from nbmn.ranks import name_ranks


def verdict(
    errors: Mapping[int, CellError],
    freed: Collection[int] = (),
    found: Diagnosis | None = None,
    note: str = "",
) -> ClusterError | None:
    """The error that a cell raises; None if all went well.

    Parameters
    ----------
    errors
        Of the ranks that raised.
    freed
        Ranks that waited for ever and were interrupted, for the reason ``found``. A cell in
        which there were some has failed, whatever its own code made of the interrupt.
    note
        Something to add.
    """
    own = {rank: e for rank, e in errors.items() if rank not in freed or not was_freed(e)}
    if found is None:
        return RanksFailed(fold(own), note=note) if own else None
    if own:
        return RanksFailed(fold(own), found, note)
    others = {rank: e for rank, e in errors.items() if e.after_interrupt}
    then = [f"{name_ranks(f.ranks)} then raised {describe(f.error)}" for f in fold(others)]
    return RanksStuck(found, then)
