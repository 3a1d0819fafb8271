"""Ranks of one host average gradients in memory that they share.

Each rank has a window, of which all ranks of the host map each other's, and a shard of the
gradients that it averages. It copies its gradients into its window, except the large ones of
its shard, which only it needs. When all have, each rank averages its shard piece by piece:
adds what is in the others' windows to what it has, divides, and puts the mean into
all windows. Then a rank's gradients are where they were, or in its own window: nothing is
copied out, and nobody else writes there before this rank takes part in another averaging.

The time goes into memory traffic. Adding in place reads and writes each line of memory
once; a third array would cost as much as the other two together.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np

from nbmn.communicators import transport
from nbmn.communicators.agreement import Vote
from nbmn.communicators.arrays import to_host
from nbmn.communicators.backend import HostBackend, MeanRequest
from nbmn.communicators.calibration import Calibration
from nbmn.communicators.layout import Layout, Piece, Place, plan_layout
from nbmn.communicators.link import Link
from nbmn.communicators.neighbours import Neighbours, meet
from nbmn.communicators.parameters import Packing, plan_packing, rounded
from nbmn.communicators.reduction import add_up, divide, spread
from nbmn.communicators.shared_memory import Pool, Segment, SharedMemoryError
from nbmn.communicators.slots import fits


class _Way(IntEnum):
    SLOTS = 0
    WINDOWS = 1
    MESSAGES = 2


_SMALL = (_Way.SLOTS, _Way.WINDOWS)
_LARGE = (_Way.WINDOWS, _Way.MESSAGES)


@dataclass(frozen=True, slots=True)
class _Put:
    """This rank's gradients are in its slot."""

    request: MeanRequest


@dataclass(frozen=True, slots=True)
class _Prepared:
    """This rank's gradients, laid out."""

    request: MeanRequest
    layout: Layout
    neighbours: Neighbours
    segment: Segment | None
    """None if there is no memory for it."""
    large: Sequence[np.ndarray]
    """The large gradients, flat: as they are, if they are averaged in place, or in the window."""
    in_place: frozenset[int]
    """Which of the large ones are averaged in place."""


class SharedMemoryBackend(HostBackend):
    """Averages gradients through shared memory; sums and broadcasts by messages.

    Parameters
    ----------
    link
        The ranks.
    on_host
        Those on this rank's host, in rank order; None for all.
    shards
        Into how many parts to cut gradients: the least number of ranks on any host.
    between
        With several hosts: the ranks with this rank's place on their hosts; None on ranks whose
        place is not below ``shards``.
    calibrate
        Try other ways in the first averagings of each size, and take what is faster.
    """

    def __init__(
        self,
        link: Link,
        on_host: Sequence[int] | None = None,
        shards: int | None = None,
        between: Link | None = None,
        *,
        calibrate: bool = False,
    ) -> None:
        super().__init__(link)
        self._on_host = tuple(range(link.size)) if on_host is None else tuple(on_host)
        self._place = self._on_host.index(link.rank)
        self._shards = len(self._on_host) if shards is None else shards
        self._several_hosts = len(self._on_host) < link.size
        self._between = between
        self._calibrate = calibrate
        self._calibration = Calibration()
        self._spent = 0.0
        self._pool = Pool()
        self._neighbours: Neighbours | None = None
        self._met: int | None = None
        self.refusal: str | None = None
        """Why gradients go by messages instead, or None."""

    def sum(self, values: np.ndarray) -> None:
        """See :class:`Backend`."""
        if self._several_hosts:
            super().sum(values)
        else:
            transport.sum_in_order(self._link, values)

    def packings(self, request: MeanRequest) -> tuple[Packing, ...]:
        """See :class:`HostBackend`; not in the dtype of the wire, as sums in windows."""
        if self._several_hosts:
            return super().packings(request)
        return plan_packing(request.table, summed=True)

    def prepare(self, request: MeanRequest) -> MeanRequest | _Prepared | _Put:
        """See :class:`Backend`."""
        began = time.perf_counter()
        super().prepare(request)
        near = self._neighbours
        layout = plan_layout(request.table, self._shards)
        if layout is None or near is None:
            return request
        if self._met != self._link.generation or self._link.dirty:
            return request
        prepared: MeanRequest | _Prepared | _Put = request
        way = self._way(request, layout)
        if way == _Way.SLOTS:
            near.slots.put(request)
            prepared = _Put(request)
        elif way == _Way.WINDOWS:
            prepared = self._publish(request, layout, near)
        self._spent = time.perf_counter() - began
        return prepared

    def mean(self, prepared: MeanRequest | _Prepared | _Put) -> list[np.ndarray | None]:
        """See :class:`Backend`."""
        try:
            return self._mean(prepared)
        except BaseException as error:
            # Also between two messages: the ranks would be out of step in what they try.
            self._link.fail(error)
            raise

    def _mean(self, prepared: MeanRequest | _Prepared | _Put) -> list[np.ndarray | None]:
        request = prepared if isinstance(prepared, MeanRequest) else prepared.request
        layout = plan_layout(request.table, self._shards)
        if layout is None or self._link.size == 1:
            return super().mean(request)
        if self._met != self._link.generation:
            self._meet()
        near = self._neighbours
        if near is None:
            return super().mean(request)
        began = time.perf_counter()
        way = self._way(request, layout)
        if way == _Way.MESSAGES:
            means = super().mean(request)
        elif way == _Way.SLOTS:
            if isinstance(prepared, MeanRequest):
                near.slots.put(request)
                transport.barrier(self._link)
            self._link.ledger.traffic += layout.nbytes  # for the recorder
            means = near.slots.mean(request)
        else:
            if not isinstance(prepared, _Prepared):
                prepared = self._publish(request, layout, near)
                transport.barrier(self._link)
            means = self._mean_in_windows(prepared)
        if self._calibrate:
            self._tell(request, layout, time.perf_counter() - began)
        return means

    def _mean_in_windows(self, prepared: _Prepared) -> list[np.ndarray | None]:
        near = prepared.neighbours
        windows = near.windows(prepared.segment)
        if (near.news or self._several_hosts) and self._any(windows is None):
            return super().mean(prepared.request)
        assert windows is not None
        assert prepared.segment is not None
        self._average(prepared, windows)
        transport.barrier(self._link)
        prepared.segment.used = True
        return self._results(prepared)

    def _ways(self, request: MeanRequest) -> tuple[int, ...]:
        return _SMALL if not self._several_hosts and fits(request.table) else _LARGE

    def _way(self, request: MeanRequest, layout: Layout) -> int:
        ways = self._ways(request)
        return self._calibration.way(ways, layout.nbytes) if self._calibrate else ways[0]

    def _tell(self, request: MeanRequest, layout: Layout, seconds: float) -> None:
        """Tell how long an averaging took; collective."""
        ways, nbytes = self._ways(request), layout.nbytes
        if self._calibration.settled(ways, nbytes):
            return
        least = self._calibration.tell(ways, nbytes, seconds + self._spent)
        self._spent = 0.0
        if least is not None:
            values = np.array([1e9 * s for s in least], np.int64)
            self._link.finish(transport.start_max(self._link, values))
            self._calibration.settle(ways, nbytes, values.tolist())
            self._buffers.clear()

    def close(self) -> None:
        """See :class:`Backend`."""
        super().close()
        self._pool = Pool()
        self._neighbours = None
        self._met = None

    def _meet(self) -> None:
        """Set up with the other ranks of the host; collective over the link."""
        generation = self._link.generation
        self._neighbours, self.refusal = meet(self._link, self._on_host)
        self._met = generation
        # An interrupt may have left the ranks at different trials.
        self._calibration = Calibration()
        for segment in self._pool.segments:
            segment.used = False
        if self.refusal is not None and self._link.rank == 0:
            warnings.warn(
                f"gradients are averaged by messages, not in shared memory: {self.refusal}",
                RuntimeWarning,
                stacklevel=2,
            )

    def _publish(self, request: MeanRequest, layout: Layout, near: Neighbours) -> _Prepared:
        """Put this rank's gradients where its neighbours find them; local."""
        try:
            segment = self._pool.take(layout.nbytes)
        except (SharedMemoryError, OSError) as error:
            near.publish_failure()
            self.refusal = f"rank {self._link.rank}: {error}"
            return _Prepared(request, layout, near, None, (), frozenset())
        for place in layout.small:
            _copy_in(request, place, segment.bytes)
        large, in_place, seen = [], [], set()
        for number, place in enumerate(layout.large):
            array = request.arrays[place.index]
            usable = request.wire is None and _writable(array, place) and id(array) not in seen
            if place.shard == self._place and usable:
                seen.add(id(array))
                in_place.append(number)
                large.append(array.reshape(-1))
            else:
                large.append(_copy_in(request, place, segment.bytes).reshape(-1))
        near.publish(segment, self._pool.segments)
        return _Prepared(request, layout, near, segment, large, frozenset(in_place))

    def _any(self, flag: bool) -> bool:
        """Say whether ``flag`` is true on any rank; collective."""
        return Vote(self._link, "windows", flag=flag).outcome().flagged

    def _average(self, prepared: _Prepared, windows: Sequence[np.ndarray]) -> None:
        """Average this rank's shard into all windows of the host."""
        self._link.ledger.traffic += prepared.layout.nbytes  # for the recorder
        if self._place >= self._shards:
            return
        # Last in, first out: what the neighbours copied last is still in a cache of the host.
        pieces = prepared.layout.shards[self._place][::-1]
        if self._between is not None:
            self._between.timeout = self._link.timeout
        # Gaps between gradients hold anything, and are added as well.
        with np.errstate(all="ignore"):
            for piece in pieces:
                parts = _memory(piece, prepared, windows)
                total = add_up(parts, prepared.neighbours.own)
                if self._between is not None:
                    transport.sum_in_place(self._between, total)
                divide(total, prepared.request.total)
                spread(total, parts)

    def _results(self, prepared: _Prepared) -> list[np.ndarray | None]:
        segment, layout = prepared.segment, prepared.layout
        assert segment is not None
        lend = self._pool.may_lend
        memory = segment.lend() if lend else segment.bytes
        means: list[np.ndarray | None] = [None] * len(prepared.request.table)
        for number, place in enumerate((*layout.large, *layout.small)):
            if number in prepared.in_place:
                means[place.index] = prepared.request.arrays[place.index]
            else:
                view = np.ndarray(place.shape, place.dtype, memory, place.begin)
                means[place.index] = view if lend else view.copy()
        return means


def _writable(array: Any, place: Place) -> bool:
    """Say whether a gradient can be averaged where it is.

    Chainer lets gradients share memory (of an addition, both operands get the same
    array) and be read-only views (of a sum): those must not be written to.
    """
    if type(array) is not np.ndarray or array.dtype != place.dtype:
        return False
    flags = array.flags
    return flags.owndata and flags.writeable and flags.c_contiguous


def _copy_in(request: MeanRequest, place: Place, window: np.ndarray) -> np.ndarray:
    target = np.ndarray(place.shape, place.dtype, window, place.begin)
    array = request.arrays[place.index]
    if array is None:
        target.fill(0)
    else:
        np.copyto(target, rounded(to_host(array), request.wire))
    return target


def _memory(piece: Piece, prepared: _Prepared, windows: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return where a piece is on each rank of the host, in rank order."""
    parts = [np.ndarray((piece.size,), piece.dtype, window, piece.begin) for window in windows]
    if piece.large is not None:
        own = prepared.large[piece.large][piece.first : piece.first + piece.size]
        parts[prepared.neighbours.own] = own
    return parts
