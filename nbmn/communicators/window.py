"""Ranks of one host average gradients in memory that they share.

Each rank has a window, of which all ranks of the host map each other's. It copies its gradients
there, except the large ones of its own shard, which only it needs. When all have, each rank
averages its shard, piece by piece, over all windows, and writes the mean into every window.
What is then in a rank's own window are its gradients: they are not copied out, and
nobody else writes to them before this rank takes part in another averaging. Where the
kernel lets ranks read each other's memory, not even the large ones are copied in.

Nothing the ranks had before is overwritten until all are done: a rank that is interrupted
keeps its own gradients.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nbmn.communicators import transport
from nbmn.communicators.arrays import summing_dtype, to_host
from nbmn.communicators.backend import HostBackend, MeanRequest
from nbmn.communicators.layout import Layout, Piece, plan_layout
from nbmn.communicators.link import Link
from nbmn.communicators.neighbours import MOST_LARGE, Neighbours, meet
from nbmn.communicators.parameters import rounded
from nbmn.communicators.reduction import write_mean
from nbmn.communicators.shared_memory import Pool, Segment, SharedMemoryError


@dataclass(frozen=True, slots=True)
class _Prepared:
    """This rank's gradients, laid out."""

    request: MeanRequest
    layout: Layout
    neighbours: Neighbours
    segment: Segment | None
    """None if there is no memory for it."""
    large: list[np.ndarray | None]
    """The large gradients, flat; alive until the others have read them."""


class SharedMemoryBackend(HostBackend):
    """Averages gradients through shared memory; sums and broadcasts by messages.

    Parameters
    ----------
    link
        The ranks.
    locals_
        Those on this rank's host, in rank order; None for all.
    shards
        Into how many parts to cut gradients: the least number of ranks on any host.
    between
        With several hosts: the ranks with this rank's place on their hosts; None on ranks whose
        place is not below ``shards``.
    """

    def __init__(
        self,
        link: Link,
        locals_: Sequence[int] | None = None,
        shards: int | None = None,
        between: Link | None = None,
    ) -> None:
        super().__init__(link)
        self._locals = tuple(range(link.size)) if locals_ is None else tuple(locals_)
        self._place = self._locals.index(link.rank)
        self._shards = len(self._locals) if shards is None else shards
        self._between = between
        self._pool = Pool()
        self._neighbours: Neighbours | None = None
        self._met: int | None = None
        self.refusal: str | None = None
        """Why gradients go by messages instead, or None."""

    def prepare(self, request: MeanRequest) -> MeanRequest | _Prepared:
        """See :class:`Backend`."""
        super().prepare(request)
        layout = self._layout(request)
        current = self._met == self._link.generation and not self._link.dirty
        if layout is None or self._neighbours is None or not current:
            return request
        return self._publish(request, layout, self._neighbours)

    def mean(self, prepared: MeanRequest | _Prepared) -> list[np.ndarray | None]:
        """See :class:`Backend`."""
        request = prepared if isinstance(prepared, MeanRequest) else prepared.request
        layout = self._layout(request)
        if layout is None or self._link.size == 1:
            return super().mean(request)
        if self._met != self._link.generation:
            self._meet()
        if self._neighbours is None:
            return super().mean(request)
        if isinstance(prepared, MeanRequest):
            prepared = self._publish(request, layout, self._neighbours)
            transport.barrier(self._link)
        try:
            failure = self._average(prepared)
        except BaseException as error:
            self._link.fail(error)
            raise
        if self._failed_somewhere(failure):
            # All still have what they had.
            return super().mean(request)
        return self._views(prepared)

    def close(self) -> None:
        """See :class:`Backend`."""
        super().close()
        self._pool = Pool()
        self._neighbours = None
        self._met = None

    def _layout(self, request: MeanRequest) -> Layout | None:
        layout = plan_layout(request.table, self._shards)
        return None if layout is None or len(layout.large) > MOST_LARGE else layout

    def _meet(self) -> None:
        """Set up with the other ranks of the host; collective over the link."""
        generation = self._link.generation
        self._neighbours, self.refusal = meet(self._link, self._locals)
        self._met = generation
        if self.refusal is not None and self._link.rank == 0:
            warnings.warn(
                f"gradients are averaged by messages, not in shared memory: {self.refusal}",
                RuntimeWarning,
                stacklevel=2,
            )

    def _publish(self, request: MeanRequest, layout: Layout, near: Neighbours) -> _Prepared:
        """Put this rank's gradients where its neighbours find them; local."""
        large = [_flat(request, place) for place in layout.large]
        try:
            segment = self._pool.take(layout.nbytes)
        except (SharedMemoryError, OSError) as error:
            near.publish_failure()
            self.refusal = f"on rank {self._link.rank}: {error}"
            return _Prepared(request, layout, near, None, large)
        for place in layout.small:
            target = np.ndarray(place.shape, place.dtype, segment.bytes, place.begin)
            array = request.arrays[place.index]
            if array is None:
                target.fill(0)
            else:
                np.copyto(target, rounded(to_host(array), request.wire))
        if not near.direct:
            for shard, pieces in enumerate(layout.shards):
                if shard != self._place:
                    _copy_large(pieces, large, segment.bytes)
        near.publish(segment, self._pool.segments, large)
        return _Prepared(request, layout, near, segment, large)

    def _average(self, prepared: _Prepared) -> bool:
        """Average this rank's shard into all windows of the host; return whether it failed."""
        near, layout, count = prepared.neighbours, prepared.layout, prepared.request.total
        pieces = layout.shards[self._place] if self._place < self._shards else ()
        windows = near.windows(prepared.segment)
        if self._between is not None:
            return self._average_over_hosts(prepared, pieces, windows)
        if windows is None:
            return True
        for piece in pieces:
            parts = _contributions(piece, prepared, windows)
            try:
                total = near.accumulator.sum(parts, piece.dtype, piece.size)
            except OSError:
                return True
            write_mean(total, count, [_at(window, piece) for window in windows])
        return False

    def _average_over_hosts(
        self, prepared: _Prepared, pieces: Sequence[Piece], windows: list[np.ndarray] | None
    ) -> bool:
        """The same, with the sums of other hosts; takes part in these whatever fails here."""
        near, count = prepared.neighbours, prepared.request.total
        sums = [np.zeros(piece.size, summing_dtype(piece.dtype)) for piece in pieces]
        failed = windows is None
        for piece, total in zip(pieces, sums, strict=True) if windows is not None else ():
            try:
                parts = _contributions(piece, prepared, windows)
                np.copyto(total, near.accumulator.sum(parts, piece.dtype, piece.size))
            except OSError:
                failed = True
        self._between.timeout = self._link.timeout
        for total in sums:
            transport.sum_in_place(self._between, total)
        for piece, total in zip(pieces, sums, strict=True) if not failed else ():
            write_mean(total, count, [_at(window, piece) for window in windows])
        return failed

    def _failed_somewhere(self, failed: bool) -> bool:
        """Return when all ranks have averaged, or could not."""
        flag = np.array([failed], np.int64)
        self._link.finish(transport.start_max(self._link, flag))
        return bool(flag[0])

    def _views(self, prepared: _Prepared) -> list[np.ndarray | None]:
        segment, layout = prepared.segment, prepared.layout
        assert segment is not None
        lend = self._pool.may_lend
        memory = segment.lend() if lend else segment.bytes
        means: list[np.ndarray | None] = [None] * len(prepared.request.table)
        for place in (*layout.small, *layout.large):
            view = np.ndarray(place.shape, place.dtype, memory, place.begin)
            means[place.index] = view if lend else view.copy()
        return means


def _flat(request: MeanRequest, place: Any) -> np.ndarray | None:
    array = request.arrays[place.index]
    if array is None:
        return None
    host = rounded(to_host(array), request.wire).astype(place.dtype, copy=False)
    return np.ascontiguousarray(host).reshape(-1)


def _at(window: np.ndarray, piece: Piece) -> np.ndarray:
    return np.ndarray((piece.size,), piece.dtype, window, piece.begin)


def _copy_large(
    pieces: Sequence[Piece], large: Sequence[np.ndarray | None], window: np.ndarray
) -> None:
    for piece in pieces:
        if piece.large is not None:
            array = large[piece.large]
            if array is not None:
                np.copyto(_at(window, piece), array[piece.first : piece.first + piece.size])


def _contributions(
    piece: Piece,
    prepared: _Prepared,
    windows: Sequence[np.ndarray],
) -> Iterator[np.ndarray]:
    """Yield what each rank of the host contributes to a piece, this rank's own first."""
    near = prepared.neighbours
    own = near.own
    for rank in (*range(own, len(windows)), *range(own)):
        if piece.large is None:
            yield _at(windows[rank], piece)
        elif rank == own:
            array = prepared.large[piece.large]
            if array is not None:
                yield array[piece.first : piece.first + piece.size]
        elif near.has(rank, piece.large):
            yield near.read(rank, piece) if near.direct else _at(windows[rank], piece)
