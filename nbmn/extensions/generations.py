"""Ranks agree on the files to resume from: the latest that all of them have, undamaged."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from nbmn.extensions import storage
from nbmn.extensions.storage import Generation, Manifest
from nbmn.extensions.together import together

if TYPE_CHECKING:
    from nbmn.communicators import Communicator

Found = Mapping[Generation, Manifest]
"""What one rank has of each generation."""


def find(
    comm: Communicator, folder: Path, series: str, is_own: Callable[[str], bool]
) -> list[Found]:
    """Return what each rank has in its folder; collective.

    Parameters
    ----------
    is_own
        Says by the name of a file whether this rank may have written it.
    """
    mine: Found = {}
    with together(comm, f"looking for {series}"):
        mine = storage.manifests(folder, series, is_own)
    return comm.allgather_obj(mine)


def latest(
    comm: Communicator,
    folder: Path,
    everyone: Sequence[Found],
    writers: Sequence[int],
    refuse: Callable[[Generation], str | None],
) -> Generation | None:
    """Return the latest generation that every writer has, undamaged; collective.

    Rank 0 warns of each that is passed over.

    Parameters
    ----------
    folder
        Where this rank's files are.
    everyone
        What :func:`find` returned.
    writers
        The ranks that read a file each.
    refuse
        Says why a generation cannot be used by the present ranks, None if it can; the same on all
        ranks.

    Raises
    ------
    ValueError
        On all ranks: ``refuse`` gave a reason.
    """
    for generation in in_order(everyone):
        reason = refuse(generation)
        if reason is not None:
            raise ValueError(reason)
        problem = None
        with together(comm, "verifying files"):
            if comm.rank in writers:
                problem = _problem(folder, everyone, generation, comm.rank)
        problems = comm.allgather_obj(problem)
        told = [f"on rank {rank}: {text}" for rank, text in enumerate(problems) if text]
        if not told:
            return generation
        if comm.rank == 0:
            warnings.warn(
                f"the files of iteration {generation.iteration} cannot be used; {'; '.join(told)}. "
                "Looking for earlier ones",
                stacklevel=2,
            )
    return None


def warn_of_orphans(comm: Communicator, folder: Path, on_disk: Callable[[], list[str]]) -> None:
    """Warn, at rank 0, of files from which nothing was loaded; collective.

    Parameters
    ----------
    on_disk
        Returns the names of this rank's files, with manifest or without.
    """
    with together(comm, "looking for files"):
        mine = on_disk()
    orphans = [name for names in comm.allgather_obj(mine) for name in names]
    if orphans and comm.rank == 0:
        warnings.warn(
            f"nothing is loaded: in {folder} there are {', '.join(orphans)}, but no iteration "
            "that all ranks have saved completely, each with its manifest (ChainerMN writes none)",
            stacklevel=2,
        )


def in_order(everyone: Sequence[Found]) -> list[Generation]:
    """Return all generations, latest first, by the clocks of the lowest ranks that have them."""
    lowest: dict[Generation, Manifest] = {}
    for found in everyone:
        lowest = {**found, **lowest}
    return [manifest.generation for manifest in storage.newest_first(lowest.values())]


def _problem(
    folder: Path, everyone: Sequence[Found], generation: Generation, rank: int
) -> str | None:
    mine = everyone[rank].get(generation)
    if mine is not None:
        return storage.what_is_wrong(folder, mine)
    other = next(r for r, found in enumerate(everyone) if generation in found)
    counterpart = everyone[other][generation].file
    return f"{folder} has no complete file that belongs to {counterpart} of rank {other}"
