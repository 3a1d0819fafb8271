"""What a backend does for a communicator: sums and broadcasts of flat buffers.

Packing, agreement and bookkeeping are the communicator's; a backend only moves numbers,
in buffers that it hands out itself, so that they can lie where it moves them best
(plain memory here; a shared window or a device elsewhere).
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from nbmn.communicators import transport
from nbmn.communicators.link import Link


class Backend(Protocol):
    """Moves flat, contiguous arrays between the ranks of one link."""

    def buffer(self, dtype: np.dtype, size: int) -> np.ndarray:
        """Return ``size`` elements to pack into; valid until the next call for this dtype."""

    def sum(self, values: np.ndarray) -> None:
        """Replace ``values`` by its sum over ranks; collective."""

    def bcast(self, values: np.ndarray, root: int) -> None:
        """Replace ``values`` by the root's; collective."""


class HostBackend:
    """Plain memory and MPI messages; works everywhere."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._generation = link.generation
        self._buffers: dict[np.dtype, np.ndarray] = {}

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
