"""What a cell, or a call outside cells, failed of, from how it ended on each rank. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

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
    """The error that a cell or call raises; None if all went well.

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


def after_failures(found: Diagnosis, failed: Mapping[int, CellError]) -> Diagnosis:
    """A diagnosis that says of ranks outside the cell that they failed in an earlier one.

    Parameters
    ----------
    failed
        How, of ranks whose last cell did.
    """
    if found.kind != "outside" or not failed.keys() >= set(found.culprits):
        return found
    folded = fold({rank: failed[rank] for rank in found.culprits})
    said = [f"{name_ranks(f.ranks)} raised {describe(f.error)}" for f in folded]
    return replace(found, cause=f"{found.cause}: in an earlier one {'; '.join(said)}", advice="")
