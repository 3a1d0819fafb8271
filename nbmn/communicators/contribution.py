"""What a rank gives to the gradients averaged in windows, and where it gets their means."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nbmn.communicators import streaming
from nbmn.communicators.backend import MeanRequest
from nbmn.communicators.layout import Layout, Place
from nbmn.communicators.parameters import rounded
from nbmn.gpu.placement import to_host


@dataclass(frozen=True, slots=True)
class Contribution:
    """The large gradients of a rank, flat, in the order of the layout."""

    arrays: Sequence[np.ndarray]
    """The gradients: as they are, or in the window. As they are, only the own shard is read."""
    means: Sequence[np.ndarray]
    """Where their means go: the gradients themselves, or into the window."""
    in_place: frozenset[int]
    """Which gradients are overwritten by their means."""


def contribute(
    request: MeanRequest, layout: Layout, shard: int, window: np.ndarray
) -> Contribution:
    """Copy into this rank's window what others will read there; local.

    Nobody else reads its own ``shard``: gradients that are all in it are averaged in place, and
    of those that are partly in it that part is added from where it is, wherever that is safe.
    """
    everywhere = layout.nbytes * len(layout.shards)
    copy = streaming.copy if streaming.exceeds_caches(everywhere) else np.copyto
    for place in layout.small:
        _copy_in(request, place, window, copy)
    means = [_flat(window, place) for place in layout.large]
    arrays = list(means)
    in_place: dict[int, int] = {}
    """By the id of the array: Chainer lets gradients share memory."""
    if request.wire is None:
        for number, place in enumerate(layout.large):
            array = request.arrays[place.index]
            if place.shard == shard and id(array) not in in_place and _writable(array, place):
                in_place[id(array)] = number
                means[number] = arrays[number] = array.reshape(-1)
    overwritten = frozenset(in_place.values())
    for number, place in enumerate(layout.large):
        if number in overwritten:
            continue
        begin, end = _within(layout, shard, place)
        array = request.arrays[place.index]
        owner = _owner(array)
        stays = begin < end and request.wire is None and _readable(array, place, owner)
        if stays and id(owner) not in in_place:
            arrays[number] = array.reshape(-1)
            copy(means[number][:begin], arrays[number][:begin])
            copy(means[number][end:], arrays[number][end:])
        else:
            _copy_in(request, place, window, copy)
    return Contribution(arrays, means, overwritten)


def _within(layout: Layout, shard: int, place: Place) -> tuple[int, int]:
    """Return which elements of a gradient are in a shard."""
    if shard >= len(layout.shards):
        return 0, 0
    begin, end = layout.cuts[shard], layout.cuts[shard + 1]
    size = place.dtype.itemsize
    return (
        max(begin - place.begin, 0) // size,
        (min(end, place.end) - place.begin) // size,
    )


def _writable(array: Any, place: Place) -> bool:
    """Say whether a gradient can be averaged where it is.

    Chainer lets gradients share memory (of an addition, both operands get the same
    array) and be read-only views (of a sum): those must not be written to.
    """
    return _readable(array, place, array) and array.flags.writeable


def _readable(array: Any, place: Place, owner: Any) -> bool:
    """Say whether a gradient can be added from where it is, in memory of ``owner``."""
    if type(array) is not np.ndarray or array.dtype != place.dtype:
        return False
    return array.flags.c_contiguous and owner.flags.owndata


def _owner(array: Any) -> Any:
    while type(array) is np.ndarray and type(array.base) is np.ndarray:
        array = array.base
    return array


def _flat(window: np.ndarray, place: Place) -> np.ndarray:
    return window[place.begin : place.end].view(place.dtype)


def _copy_in(
    request: MeanRequest,
    place: Place,
    window: np.ndarray,
    copy: Callable[[np.ndarray, np.ndarray], None],
) -> None:
    target = np.ndarray(place.shape, place.dtype, window, place.begin)
    array = request.arrays[place.index]
    if array is None:
        target.fill(0)
    else:
        copy(target, rounded(to_host(array), request.wire))
