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
from nbmn.communicators.arrays import to_host
from nbmn.communicators.backend import HostBackend, MeanRequest
from nbmn.communicators.calibration import Calibration
from nbmn.communicators.layout import Layout, Piece, Place, plan_layout
from nbmn.communicators.link import Link
from nbmn.communicators.neighbours import Neighbours, meet
from nbmn.communicators.parameters import rounded
from nbmn.communicators.reduction import add, divide, spread
from nbmn.communicators.shared_memory import Pool, Segment, SharedMemoryError


class _Way(IntEnum):
    WINDOWS = 0
    MESSAGES = 1


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
        Try messages as well in the first averagings of each size, and take what is faster.
        Then the last bits of means of more than two ranks can differ from run to run.
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
        self._calibration = Calibration(len(_Way))
        self._spent = 0.0
        self._pool = Pool()
        self._neighbours: Neighbours | None = None
        self._met: int | None = None
        self.refusal: str | None = None
        """Why gradients go by messages instead, or None."""

    def prepare(self, request: MeanRequest) -> MeanRequest | _Prepared:
        """See :class:`Backend`."""
        began = time.perf_counter()
        super().prepare(request)
        near = self._neighbours
        layout = plan_layout(request.table, self._shards)
        current = self._met == self._link.generation and not self._link.dirty
        if layout is None or near is None or not current or self._way(layout) == _Way.MESSAGES:
            return request
        prepared = self._publish(request, layout, near)
        self._spent = time.perf_counter() - began
        return prepared

    def mean(self, prepared: MeanRequest | _Prepared) -> list[np.ndarray | None]:
        """See :class:`Backend`."""
        try:
            return self._mean(prepared)
        except BaseException as error:
            # Also between two messages: the ranks would be out of step in what they try.
            self._link.fail(error)
            raise

    def _mean(self, prepared: MeanRequest | _Prepared) -> list[np.ndarray | None]:
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
        if self._way(layout) == _Way.MESSAGES:
            means = super().mean(request)
        else:
            if isinstance(prepared, MeanRequest):
                prepared = self._publish(request, layout, near)
                transport.barrier(self._link)
            means = self._mean_in_windows(prepared)
        if self._calibrate and not self._calibration.settled(layout.nbytes):
            self._tell(layout, time.perf_counter() - began)
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

    def _way(self, layout: Layout) -> int:
        return self._calibration.way(layout.nbytes) if self._calibrate else _Way.WINDOWS

    def _tell(self, layout: Layout, seconds: float) -> None:
        """Tell how long an averaging took; collective."""
        least = self._calibration.tell(layout.nbytes, seconds + self._spent)
        self._spent = 0.0
        if least is not None:
            values = np.array([1e9 * s for s in least], np.int64)
            self._link.finish(transport.start_max(self._link, values))
            self._calibration.settle(layout.nbytes, values.tolist())
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
        self._calibration = Calibration(len(_Way))
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
        values = np.array([flag], np.int64)
        self._link.finish(transport.start_max(self._link, values))
        return bool(values[0])

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
                own, others = _memory(piece, prepared, windows)
                total = add(own, others)
                if self._between is not None:
                    transport.sum_in_place(self._between, total)
                divide(total, prepared.request.total)
                spread(total, (own, *others))

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


def _memory(
    piece: Piece, prepared: _Prepared, windows: Sequence[np.ndarray]
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return where a piece is on this rank, and where on the others of the host."""
    at = [np.ndarray((piece.size,), piece.dtype, window, piece.begin) for window in windows]
    own = at.pop(prepared.neighbours.own)
    if piece.large is not None:
        own = prepared.large[piece.large][piece.first : piece.first + piece.size]
    return own, at
