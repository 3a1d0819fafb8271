"""What a backend does for a communicator: sums, broadcasts and means of numbers.

Agreement and bookkeeping are the communicator's; a backend only moves numbers, in
buffers that it hands out itself, so that they can lie where it moves them best
(plain memory here; shared memory or a device elsewhere).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from nbmn.communicators import transport
from nbmn.communicators.link import Link
from nbmn.communicators.parameters import Packing, Table, pack, plan_packing, unpack_means


class MeanRequest(NamedTuple):
    """Gradients to average.

    Not a dataclass, as others that are made in each averaging: a frozen one takes five times as
    long to make.
    """

    table: Table
    """What is present on any rank; alike on all."""
    arrays: Sequence[Any]
    """This rank's, NumPy or CuPy, one per entry of the table; None counts as zero."""
    total: int
    """What to divide the sums by."""
    wire: str | None = None
    """dtype to which contributions are rounded first; None for their own."""
    home: Any = None
    """An array on the GPU on which this rank's are, or would be if there were any."""


class Backend(Protocol):
    """Moves flat, contiguous arrays between the ranks of one link."""

    @property
    def step(self) -> int:
        """Counts averagings as far as the next one depends on it: the ranks vote on it."""

    def restart(self) -> None:
        """Begin anew on all ranks, whose steps differ: some of them left an averaging; local."""

    def buffer(self, dtype: np.dtype, size: int) -> np.ndarray:
        """Return ``size`` elements to pack into; valid until the next call for this dtype; local.

        What the buffer held before is undefined.
        """

    def sum(self, values: np.ndarray) -> None:
        """Replace ``values`` by its sum over ranks; collective."""

    def bcast(self, values: np.ndarray, root: int) -> None:
        """Replace ``values`` by the root's; collective."""

    def sum_on_device(self, arrays: Sequence[Any]) -> list[Any] | None:
        """Return the sums of arrays that lie on GPUs, alike in shape and dtype on all ranks.

        Collective. None, on all ranks, if they must go through host memory.
        """

    def bcast_on_device(self, arrays: Sequence[Any], root: int) -> bool | None:
        """Replace arrays, all on one GPU, alike in shape and dtype on all ranks, by the root's.

        Collective.

        Returns
        -------
        Whether this rank had others; None, on all ranks, if they must go through host memory.
        """

    def prepare(self, request: MeanRequest) -> Any:
        """Begin to average: what can be done before the other ranks are there; local.

        Raises
        ------
        TypeError, ValueError
            Gradients of such a dtype, or rounded to such a one, cannot be averaged.
        """

    def mean(self, prepared: Any) -> list[np.ndarray | None]:
        """Return the means, one per entry of the table, None where nothing is present.

        Collective; all ranks have prepared the same table before any calls this. A mean may be
        the array of the request, overwritten.
        """

    def close(self) -> None:
        """Let go of memory; means handed out stay valid; local.

        Usable again afterwards, if all ranks have closed it.
        """


class HostBackend:
    """Plain memory and MPI messages; works everywhere."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._generation = link.generation
        self._buffers: dict[np.dtype, np.ndarray] = {}

    @property
    def step(self) -> int:
        """See :class:`Backend`; nothing depends on it."""
        return 0

    def restart(self) -> None:
        """See :class:`Backend`."""

    def buffer(self, dtype: np.dtype, size: int) -> np.ndarray:
        """See :class:`Backend`."""
        if self._generation != self._link.generation:
            # MPI may still write to what an interrupted collective left behind.
            self._buffers.clear()
            self._generation = self._link.generation
        held = self._buffers.get(dtype)
        if held is None or held.size < size:
            held = self._buffers[dtype] = np.empty(size, dtype)
        return held[:size]

    def sum(self, values: np.ndarray) -> None:
        """See :class:`Backend`."""
        transport.sum_in_place(self._link, values)

    def bcast(self, values: np.ndarray, root: int) -> None:
        """See :class:`Backend`."""
        transport.bcast_in_place(self._link, values, root)

    def sum_on_device(self, arrays: Sequence[Any]) -> None:
        """See :class:`Backend`; this is host memory."""

    def bcast_on_device(self, arrays: Sequence[Any], root: int) -> None:
        """See :class:`Backend`; this is host memory."""

    def prepare(self, request: MeanRequest) -> MeanRequest:
        """See :class:`Backend`; packing waits until the ranks agree."""
        self.packings(request)
        return request

    def packings(self, request: MeanRequest) -> tuple[Packing, ...]:
        """Return how gradients are packed; local."""
        return plan_packing(request.table, summed=True, wire=request.wire)

    def mean(self, prepared: MeanRequest) -> list[np.ndarray | None]:
        """See :class:`Backend`."""
        request = prepared
        means: list[np.ndarray | None] = [None] * len(request.table)
        # What overflows on one rank must not be an error there, and make the others wait.
        with np.errstate(all="ignore"):
            for packing in self.packings(request):
                buffer = self.buffer(packing.dtype, packing.size)
                pack(buffer, packing, request.arrays, request.wire)
                self.sum(buffer)
                unpack_means(buffer, packing, request.arrays, means, request.total)
        return means

    def close(self) -> None:
        """See :class:`Backend`."""
        self._buffers.clear()
