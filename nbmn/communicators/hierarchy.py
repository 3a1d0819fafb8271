"""Backends made of others: within each host, and between hosts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from nbmn.communicators import transport
from nbmn.communicators.backend import Backend, HostBackend, MeanRequest
from nbmn.communicators.link import Link


class DummyBackend(HostBackend):
    """Leaves each rank its own gradients: what remains is the time of all but the messages."""

    def sum(self, values: np.ndarray) -> None:
        """Leave ``values`` as they are; local."""

    def mean(self, prepared: MeanRequest) -> list[np.ndarray | None]:
        """Return this rank's own gradients; local."""
        return super().mean(replace(prepared, total=1))


class _OverHosts(HostBackend):
    """Shares its whole link's fate with the links of its parts."""

    def __init__(self, link: Link, within: Link, between: Link | None) -> None:
        super().__init__(link)
        self._within = within
        self._between = between

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
    """Sums on each host, then between the hosts' first ranks, who pass the result on."""

    def __init__(self, link: Link, within: Link, between: Link | None, on_host: Backend) -> None:
        super().__init__(link, within, between)
        self._on_host = on_host

    def sum(self, values: np.ndarray) -> None:
        """See :class:`Backend`."""
        with self._together():
            self._on_host.sum(values)
            if self._between is not None:
                transport.sum_in_place(self._between, values)
            self._on_host.bcast(values, 0)

    def close(self) -> None:
        """See :class:`Backend`."""
        super().close()
        self._on_host.close()


class TwoDimensionalBackend(_OverHosts):
    """Sums shards: each rank of a host carries one of them to the ranks like it elsewhere."""

    def sum(self, values: np.ndarray) -> None:
        """See :class:`Backend`."""
        shards = self._within.size
        even = values.size // shards * shards
        with self._together():
            if even:
                shard = transport.sum_shards(self._within, values[:even])
                transport.sum_in_place(self._between, shard)
                transport.allgather_in_place(self._within, shard, values[:even])
            transport.sum_in_place(self._link, values[even:])
