"""Backends over several hosts: within each host, then between hosts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from nbmn.communicators import transport
from nbmn.communicators.backend import HostBackend, MeanRequest
from nbmn.communicators.link import Link
from nbmn.communicators.window import SharedMemoryBackend


class DummyBackend(HostBackend):
    """Leaves each rank its own gradients: what remains is the time of all but the messages."""

    def sum(self, values: np.ndarray) -> None:
        """Leave ``values`` as they are; local."""

    def mean(self, prepared: MeanRequest) -> list[np.ndarray | None]:
        """Return this rank's own gradients; local."""
        return super().mean(prepared._replace(total=1))


class _OverHosts(SharedMemoryBackend):
    """Averages in shared memory within each host; sums by messages within, then between.

    Parameters
    ----------
    link
        The ranks.
    locals_
        Those on this rank's host.
    shards
        Into how many parts to cut gradients.
    within
        The ranks on this rank's host.
    between
        The ranks with this rank's place on their hosts; None on ranks without a shard.
    even
        All hosts have equally many ranks.
    """

    def __init__(
        self,
        link: Link,
        locals_: Sequence[int],
        shards: int,
        within: Link,
        between: Link | None,
        *,
        even: bool,
    ) -> None:
        super().__init__(link, locals_, shards, between)
        self._within = within
        self._even = even

    @contextmanager
    def _together(self) -> Iterator[None]:
        for part in (self._within, self._between):
            if part is not None:
                part.timeout = self._link.timeout
        try:
            yield
        except BaseException as error:
            # Else this rank could go on with the whole link while others wait in a part.
            self._link.fail(error)
            raise


class HierarchicalBackend(_OverHosts):
    """One rank of each host talks to the other hosts."""

    def sum(self, values: np.ndarray) -> None:
        """See :class:`Backend`."""
        with self._together():
            transport.sum_in_place(self._within, values)
            if self._between is not None:
                transport.sum_in_place(self._between, values)
            transport.bcast_in_place(self._within, values, 0)


class TwoDimensionalBackend(_OverHosts):
    """Each rank of a host carries one shard to the ranks like it on other hosts."""

    def sum(self, values: np.ndarray) -> None:
        """See :class:`Backend`."""
        if not self._even:
            super().sum(values)
            return
        shards = self._within.size
        even = values.size // shards * shards
        with self._together():
            if even:
                shard = transport.sum_shards(self._within, values[:even])
                transport.sum_in_place(self._between, shard)
                transport.allgather_in_place(self._within, shard, values[:even])
            transport.sum_in_place(self._link, values[even:])
