"""Averages what a model keeps besides its parameters, such as running means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import chainer
import numpy as np
from chainer.training import extension

from nbmn.communicators.errors import MismatchError
from nbmn.extensions.together import together

if TYPE_CHECKING:
    from chainer import Link
    from chainer.training import Trainer

    from nbmn.communicators import Communicator


@dataclass(frozen=True, slots=True)
class Kept:
    """A persistent value as the other ranks need to know it."""

    shape: tuple[int, ...]
    dtype: str


class AllreducePersistent(extension.Extension):
    """Replaces the persistent arrays of a model by their means over ranks.

    Only arrays of floating-point or complex numbers; counters and other objects stay as they
    are. Means are computed in float32 at least and rounded once. An array that only some ranks
    have (a link that the others have not used yet) becomes the mean over those, on all.

    Parameters
    ----------
    model
        Its persistents are averaged, in place where they can be written to.
    comm
        The ranks. Calling the extension is collective over them.
    """

    trigger = 1, "epoch"
    priority = extension.PRIORITY_WRITER + 1  # evaluators, which are writers, want the means

    def __init__(self, model: Link, comm: Communicator) -> None:
        self.model = model
        self.comm = comm

    def __call__(self, trainer: Trainer | None = None) -> None:
        """Average; collective.

        Raises
        ------
        MismatchError
            On all ranks: an array has another shape or dtype on another rank, or the ranks'
            models have different persistents.
        Exception
            On all ranks: the model of one is no link.
        """
        with together(self.comm, "AllreducePersistent"):
            places = _places(self.model)
            mine = {
                name: _describe(getattr(link, attribute))
                for name, (link, attribute) in sorted(places.items())
            }
        everyone = self.comm.allgather_obj(mine)
        counts = agreed(everyone)
        if not counts:
            return
        xp = self.model.xp
        summed = self.comm.allreduce(
            [_contribution(places[name], kept, xp) for name, (kept, _) in counts.items()]
        )
        for (name, (kept, count)), total in zip(counts.items(), summed, strict=True):
            link, attribute = places[name]
            mean = xp.asarray(total / count, kept.dtype)  # of a scalar, too
            array = getattr(link, attribute)
            if array is None or not getattr(array.flags, "writeable", True):
                setattr(link, attribute, mean)
            else:
                array[...] = mean


def agreed(everyone: list[dict[str, Kept | None]]) -> dict[str, tuple[Kept, int]]:
    """Return what to average, and over how many ranks.

    Parameters
    ----------
    everyone
        Per rank: what it has under each name; None for nothing to average.

    Raises
    ------
    MismatchError
        It does not fit together.
    """
    counts: dict[str, tuple[Kept, int]] = {}
    for rank, theirs in enumerate(everyone):
        odd = sorted(theirs.keys() ^ everyone[0].keys())
        if odd:
            raise MismatchError(
                f"AllreducePersistent: ranks 0 and {rank} do not both have {', '.join(odd)}; "
                "build the same model on all ranks"
            )
        for name, kept in theirs.items():
            if kept is None:
                continue
            first, count = counts.get(name, (kept, 0))
            if kept != first:
                raise MismatchError(
                    f"AllreducePersistent: {name} is {kept.shape}, {kept.dtype} on rank {rank} "
                    f"and {first.shape}, {first.dtype} on a lower one"
                )
            counts[name] = (first, count + 1)
    return counts


def _places(model: Link) -> dict[str, tuple[Link, str]]:
    return {
        f"{path}/{attribute}": (link, attribute)
        for path, link in model.namedlinks()
        for attribute in link._persistent
    }


def _describe(value: Any) -> Kept | None:
    # NumPy's scalars are no arrays: they cannot be replaced in place, and stay as numbers do.
    if not isinstance(value, chainer.get_array_types()) or np.dtype(value.dtype).kind not in "fc":
        return None
    return Kept(tuple(value.shape), np.dtype(value.dtype).str)


def _contribution(place: tuple[Link, str], kept: Kept, xp: Any) -> Any:
    value = getattr(*place)
    dtype = np.promote_types(kept.dtype, np.float32)
    return xp.zeros(kept.shape, dtype) if value is None else value.astype(dtype)
