"""Small gradients: each rank of a host sums those of all ranks by itself.

A rank packs its gradients into a slot before it votes that it is ready to average. When all have
voted, all gradients are there, and each rank adds them up: more arithmetic than if each
did a part, but nobody waits for anybody again. The next time it takes its other slot, so that
slower ranks can still read this one: it comes back only after a vote that nobody makes before
being through with that.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nbmn.communicators.backend import MeanRequest
from nbmn.communicators.parameters import (
    Packing,
    Table,
    means_from,
    overwritable,
    pack_into,
    plan_packing,
    views_of,
)
from nbmn.communicators.reduction import add, division

SLOT = 256 * 1024
"""Bytes of a slot."""

_LARGE = 4096
"""Bytes of a gradient on the average, from which on one more NumPy call for each pays."""

_MOST_PLANS = 16


@dataclass(frozen=True, slots=True)
class _Part:
    """Gradients of one dtype, in one turn."""

    packing: Packing
    own: list[np.ndarray]
    """Where each gradient of this rank goes."""
    theirs: list[np.ndarray]
    """Where each gradient of the other rank is, if it is to be added to this rank's where that is:
    of two ranks, large ones, summed in their own dtype."""
    everyone: list[np.ndarray]
    """All gradients of each rank."""
    total: np.ndarray
    totals: list[np.ndarray]
    """The sum of each gradient."""


class Slots:
    """Two slots of each rank.

    Parameters
    ----------
    own
        This rank's place among them.
    memories
        Of each rank ``2 * SLOT`` bytes.
    """

    def __init__(self, own: int, memories: Sequence[np.ndarray]) -> None:
        self._own = own
        self._turns = [[memory[at : at + SLOT] for memory in memories] for at in (0, SLOT)]
        self._turn = 0
        self._total = np.empty(SLOT, np.uint8)
        self._plans: dict[Table, tuple[list[_Part], list[_Part]]] = {}

    def put(self, request: MeanRequest) -> None:
        """Pack this rank's gradients into its slot; local."""
        for part in self._plan(request.table)[self._turn]:
            pack_into(part.own, part.packing, request.arrays, request.wire)

    def mean(self, request: MeanRequest) -> list[np.ndarray | None]:
        """Return the means, once all ranks have put; local."""
        parts = self._plan(request.table)[self._turn]
        self._turn = 1 - self._turn
        means: list[Any] = [None] * len(request.table)
        for part in parts:
            if part.theirs and request.wire is None:
                self._add_to_gradients(part, request, means)
                continue
            add(part.everyone, part.total)
            means_from(part.totals, part.packing, request.arrays, means, request.total)
        return means

    def _add_to_gradients(self, part: _Part, request: MeanRequest, means: list[Any]) -> None:
        operation, number = division(part.packing.dtype, request.total)
        written: set[int] = set()
        rows = zip(part.packing.spans, part.own, part.theirs, strict=True)
        for span, mine, theirs in rows:
            array = request.arrays[span.index]
            if overwritable(array, span) and id(array) not in written:
                written.add(id(array))
                mine = array
            else:
                array = np.empty(span.shape, span.dtype)
            # Of two, the order makes no difference.
            np.add(mine, theirs, out=array)
            means[span.index] = operation(array, number, out=array)

    def _plan(self, table: Table) -> tuple[list[_Part], list[_Part]]:
        plan = self._plans.get(table)
        if plan is None:
            if len(self._plans) >= _MOST_PLANS:
                self._plans.clear()
            first, second = (self._parts(table, slots) for slots in self._turns)
            plan = self._plans[table] = first, second
        return plan

    def _parts(self, table: Table, slots: Sequence[np.ndarray]) -> list[_Part]:
        parts = []
        for packing, begin, end in _places(table):
            everyone = [slot[begin:end].view(packing.dtype) for slot in slots]
            total = self._total[begin:end].view(packing.dtype)
            own = views_of(everyone[self._own], packing)
            large = end - begin >= _LARGE * len(packing.spans)
            same = all(span.dtype == packing.dtype for span in packing.spans)
            theirs = []
            if len(slots) == 2 and large and same:
                theirs = views_of(everyone[1 - self._own], packing)
            parts.append(_Part(packing, own, theirs, everyone, total, views_of(total, packing)))
        return parts


def fits(table: Table) -> bool:
    """Say whether these gradients fit into a slot; the same on all ranks."""
    places = _places(table)
    return not places or places[-1][2] <= SLOT


@functools.lru_cache(maxsize=64)
def _places(table: Table) -> list[tuple[Packing, int, int]]:
    """Return where in a slot, in bytes, the gradients of each dtype lie."""
    places, end = [], 0
    # Not in the dtype of the wire: sums are the same to the last bit as in other ways.
    for packing in plan_packing(table, summed=True):
        begin = -(-end // 64) * 64
        end = begin + packing.size * packing.dtype.itemsize
        places.append((packing, begin, end))
    return places
