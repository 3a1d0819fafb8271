"""Adds up what lies on GPUs by an MPI that reads and writes their memory itself."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from nbmn.communicators import transport
from nbmn.communicators.carriers import Buffers, on_host, wait_for_device
from nbmn.communicators.cuda_aware import DEADLINE
from nbmn.communicators.link import Link
from nbmn.gpu.runtime import Event, Gpu


class MpiCarrier:
    """See :class:`~nbmn.communicators.carriers.Carrier`.

    Parameters
    ----------
    prove
        Called on rank 0 only: returns why this MPI is not to be given such memory, or None.
    """

    travelling = staticmethod(on_host)

    def __init__(self, link: Link, gpu: Gpu, prove: Callable[[], str | None]) -> None:
        self._link = link
        self._runtime = gpu.runtime
        self._prove = prove

    def settle(self, device: int) -> str | None:
        """Ask rank 0 for a proof; collective."""
        note = b""
        if self._link.rank == 0:
            note = (self._prove() or "").encode()[: transport.INLINE]
        with self._link.patience(2 * DEADLINE):
            return transport.bcast_note(self._link, note, 0).decode(errors="replace") or None

    def add(self, buffers: Buffers, ready: Event, device: int) -> None:
        """Replace each buffer by its sum over ranks; collective."""
        self._carry(transport.sum_in_place, buffers, ready, device)

    def bcast(self, buffers: Buffers, ready: Event, device: int, root: int) -> None:
        """Replace each buffer by the root's; collective."""
        self._carry(functools.partial(transport.bcast_in_place, root=root), buffers, ready, device)

    def _carry(
        self, move: Callable[[Link, Any], None], buffers: Buffers, ready: Event, device: int
    ) -> None:
        try:
            # MPI knows nothing of streams.
            wait_for_device(self._link, self._runtime, ready, device)
            for _, buffer in buffers:
                move(self._link, buffer)
        except BaseException as error:
            self._link.fail(error)
            raise

    def close(self) -> None:
        """Hold nothing; local."""
