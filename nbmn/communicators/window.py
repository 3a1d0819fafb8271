"""Ranks of one host average gradients in memory that they share.

Each rank has a window, of which all ranks of the host map each other's, and a shard of the
gradients that it averages. It copies its gradients into its window, except the large ones of
its shard, which only it needs. When all have, each rank averages its shard piece by piece:
adds what is in the others' windows to what it has, divides, and puts the mean into
all windows. Then a rank's gradients are where they were, or in its own window: nothing is
copied out, and nobody else writes there before this rank takes part in another averaging.

The time goes into memory traffic. Averaging in place reads and writes each line of memory
once; a third array would cost as much as the other two together.
"""

from __future__ import annotations

import functools
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from nbmn.communicators import transport
from nbmn.communicators.agreement import agree, any_of
from nbmn.communicators.backend import HostBackend, MeanRequest
from nbmn.communicators.calibration import Calibration
from nbmn.communicators.contribution import Contribution, contribute
from nbmn.communicators.layout import Layout, Piece, plan_layout
from nbmn.communicators.link import Link
from nbmn.communicators.neighbours import Neighbours, make_board, meet
from nbmn.communicators.parameters import Packing, check_wire, plan_packing
from nbmn.communicators.reduction import average
from nbmn.communicators.shared_memory import Pool, Segment, SharedMemoryError
from nbmn.communicators.slots import fits


class _Way(IntEnum):
    SLOTS = 0
    WINDOWS = 1
    MESSAGES = 2


_SMALL = (_Way.SLOTS, _Way.WINDOWS)
_LARGE = (_Way.WINDOWS, _Way.MESSAGES)


class _Put(NamedTuple):
    """This rank's gradients are in its slot."""

    request: MeanRequest
    layout: Layout


@dataclass(frozen=True, slots=True)
class _Prepared:
    """This rank's gradients, laid out."""

    request: MeanRequest
    layout: Layout
    neighbours: Neighbours
    segment: Segment | None
    """None if there is no memory for it."""
    large: Contribution | None


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
        self._averaged = 0
        self._pool = Pool()
        self._board: Segment | None = None
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
        layout = plan_layout(request.table, self._shards)
        if layout is None:
            return super().prepare(request)
        check_wire(request.wire)
        near, link = self._neighbours, self._link
        if near is None or self._met != link.generation or link.broken is not None:
            return request
        began = time.perf_counter()
        way = self._way(request, layout)
        if way == _Way.MESSAGES:
            return request
        prepared: _Prepared | _Put
        with np.errstate(all="ignore"):
            if way == _Way.SLOTS:
                near.slots.put(request, link.ledger.begun)
                prepared = _Put(request, layout)
            else:
                prepared = self._publish(request, layout, near)
        self._spent = time.perf_counter() - began
        return prepared

    def mean(self, prepared: MeanRequest | _Prepared | _Put) -> list[np.ndarray | None]:
        """See :class:`Backend`."""
        try:
            # Of what a warning would tell, the means tell as much; on some ranks it is an error.
            with np.errstate(all="ignore"):
                means = self._mean(prepared)
                self._averaged += 1
                return means
        except BaseException as error:
            # Also between two messages: the ranks would be out of step in what they try.
            self._link.fail(error)
            raise

    def _mean(self, prepared: MeanRequest | _Prepared | _Put) -> list[np.ndarray | None]:
        if isinstance(prepared, MeanRequest):
            return self._mean_of(prepared)
        began = time.perf_counter()
        if isinstance(prepared, _Put):
            means = self._mean_in_slots(prepared)
        else:
            means = self._mean_in_windows(prepared)
        self._tell(prepared.request, prepared.layout, began)
        return means

    def _mean_of(self, request: MeanRequest) -> list[np.ndarray | None]:
        """Average what could not be prepared, or need not be."""
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
            near.slots.put(request, self._link.ledger.begun)
            agree(self._link, "slots")
            means = self._mean_in_slots(_Put(request, layout))
        else:
            prepared = self._publish(request, layout, near)
            agree(self._link, "windows")
            means = self._mean_in_windows(prepared)
        self._tell(request, layout, began)
        return means

    def _mean_in_slots(self, put: _Put) -> list[np.ndarray | None]:
        near = self._neighbours
        assert near is not None
        self._link.ledger.traffic += put.layout.nbytes  # for the recorder
        return near.slots.mean(put.request)

    def _mean_in_windows(self, prepared: _Prepared) -> list[np.ndarray | None]:
        near = prepared.neighbours
        windows = near.windows(prepared.segment)
        if (near.news or self._several_hosts) and any_of(self._link, "windows", windows is None):
            return super().mean(prepared.request)
        assert windows is not None
        assert prepared.segment is not None
        self._average(prepared, windows)
        agree(self._link, "averaged windows")
        prepared.segment.used = True
        return self._results(prepared)

    def _ways(self, request: MeanRequest) -> tuple[int, ...]:
        return _SMALL if not self._several_hosts and fits(request.table) else _LARGE

    def _way(self, request: MeanRequest, layout: Layout) -> int:
        ways = self._ways(request)
        return self._calibration.way(ways, layout.nbytes) if self._calibrate else ways[0]

    def _tell(self, request: MeanRequest, layout: Layout, began: float) -> None:
        """Tell how long an averaging took; collective."""
        if not self._calibrate:
            return
        ways, nbytes = self._ways(request), layout.nbytes
        if self._calibration.settled(ways, nbytes):
            return
        seconds = time.perf_counter() - began
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
        self._neighbours = self._board = None
        self._met = None
        self._averaged = 0

    @property
    def step(self) -> int:
        """See :class:`Backend`: which way is tried next, and into which slots gradients went."""
        turn = 0 if self._neighbours is None else self._neighbours.slots.turn
        return 2 * self._averaged + turn

    def restart(self) -> None:
        """See :class:`Backend`."""
        self._averaged = 0
        self._calibration = Calibration()
        if self._neighbours is not None:
            self._neighbours.slots.turn = 0

    def _meet(self) -> None:
        """Set up with the other ranks of the host; collective over the link."""
        generation = self._link.generation
        # Held here: others may open it later than an interrupt strikes this rank.
        self._board, problem = make_board(self._link.rank)
        self._neighbours, self.refusal = meet(self._link, self._on_host, self._board, problem)
        self._met = generation
        # An interrupt may have left the ranks at different trials.
        self.restart()
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
            return _Prepared(request, layout, near, None, None)
        large = contribute(request, layout, self._place, segment.bytes)
        near.publish(segment, self._pool.segments)
        return _Prepared(request, layout, near, segment, large)

    def _average(self, prepared: _Prepared, windows: Sequence[np.ndarray]) -> None:
        """Average this rank's shard into all windows of the host."""
        self._link.ledger.traffic += prepared.layout.nbytes  # for the recorder
        if self._place >= self._shards:
            return
        # Last in, first out: what the neighbours copied last is still in a cache of the host.
        pieces = prepared.layout.shards[self._place][::-1]
        add_others = None
        if self._between is not None:
            self._between.timeout = self._link.timeout
            add_others = functools.partial(transport.sum_in_place, self._between)
        # Gaps between gradients hold anything, and are added as well.
        for piece in pieces:
            parts, target = _memory(piece, prepared, windows)
            own = prepared.neighbours.own
            average(parts, own, target, prepared.request.total, add_others)

    def _results(self, prepared: _Prepared) -> list[np.ndarray | None]:
        segment, layout = prepared.segment, prepared.layout
        assert segment is not None
        assert prepared.large is not None
        lend = self._pool.may_lend
        memory = segment.lend() if lend else segment.bytes
        means: list[np.ndarray | None] = [None] * len(prepared.request.table)
        for number, place in enumerate((*layout.large, *layout.small)):
            if number in prepared.large.in_place:
                means[place.index] = prepared.request.arrays[place.index]
            else:
                view = np.ndarray(place.shape, place.dtype, memory, place.begin)
                means[place.index] = view if lend else view.copy()
        return means


def _memory(
    piece: Piece, prepared: _Prepared, windows: Sequence[np.ndarray]
) -> tuple[list[np.ndarray], np.ndarray]:
    """Return where a piece is on each rank of the host, and where this rank gets its mean."""
    parts = [np.ndarray((piece.size,), piece.dtype, window, piece.begin) for window in windows]
    own = prepared.neighbours.own
    if piece.large is None:
        return parts, parts[own]
    assert prepared.large is not None
    array, mean = prepared.large.arrays[piece.large], prepared.large.means[piece.large]
    here = slice(piece.first, piece.first + piece.size)
    parts[own] = array[here]
    return parts, parts[own] if mean is array else mean[here]
