"""Gradients that lie on GPUs go their own way, and the others through host memory."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nbmn.communicators.agreement import prepare_together
from nbmn.communicators.backend import Backend, MeanRequest
from nbmn.communicators.background import under_way
from nbmn.communicators.carriers import Carrier, device_of
from nbmn.communicators.device_means import DeviceMeans, Packed
from nbmn.communicators.device_values import DeviceValues
from nbmn.communicators.host_copies import devices_of
from nbmn.communicators.link import Link
from nbmn.communicators.parameters import Table
from nbmn.communicators.staging import StagedMeans
from nbmn.gpu.runtime import Runtime


@dataclass(frozen=True, slots=True)
class _Parts:
    """One request in two, each prepared by who averages it."""

    device: Any
    host: Any
    """None where there is nothing for it."""


class DeviceBackend:
    """See :class:`Backend`. Which way gradients on GPUs go is settled when the first come.

    Parameters
    ----------
    link
        The ranks.
    host
        Does all that is done in host memory.
    runtime
        The devices'; not touched before there are gradients on one.
    carrier
        Adds up on the devices, where it can; without one all goes through host memory.
    """

    def __init__(
        self, link: Link, host: Backend, runtime: Runtime, carrier: Carrier | None = None
    ) -> None:
        self._link = link
        self._runtime = runtime
        self._host = host
        self._staged = StagedMeans(link, host, runtime)
        self._direct = None if carrier is None else DeviceMeans(link, runtime, carrier)
        self._settled: int | None = None
        self.refusal: str | None = None
        """Why what is on GPUs goes through host memory nevertheless, or None."""

    @property
    def step(self) -> int:
        """See :class:`Backend`; on devices nothing depends on it."""
        return self._host.step

    def restart(self) -> None:
        """See :class:`Backend`."""
        self._host.restart()

    def buffer(self, dtype: np.dtype, size: int) -> np.ndarray:
        """See :class:`Backend`; host memory."""
        return self._host.buffer(dtype, size)

    def sum(self, values: np.ndarray) -> None:
        """See :class:`Backend`; of host memory."""
        self._host.sum(values)

    def bcast(self, values: np.ndarray, root: int) -> None:
        """See :class:`Backend`; of host memory."""
        self._host.bcast(values, root)

    def sum_on_device(self, arrays: Sequence[Any]) -> list[Any] | None:
        """See :class:`Backend`."""
        direct = self._direct
        if direct is None or not direct.can_add(arrays):
            return None
        request = direct.request(arrays)
        self._wait_for_workers()
        if not self._goes_directly(direct, device_of(request, self._runtime)):
            return None
        packed = prepare_together(
            self._link, "allreduce", lambda: direct.prepare(request, averages=False)
        )
        return direct.mean(packed)

    def bcast_on_device(self, arrays: Sequence[Any], root: int) -> bool | None:
        """See :class:`Backend`."""
        direct = self._direct
        if direct is None:
            return None
        (device,) = devices_of(arrays, self._runtime)
        self._wait_for_workers()
        if not self._goes_directly(direct, device):
            return None
        values = DeviceValues(self._link, self._runtime, direct.carrier)
        packed = prepare_together(
            self._link, "bcast_data", lambda: values.prepare(arrays, device, root)
        )
        values.bcast(packed, root)
        # NCCL's root may be through before others have begun; nobody returns before all are.
        return prepare_together(self._link, "bcast_data", lambda: values.replace(packed, root))

    def prepare(self, request: MeanRequest) -> Any:
        """See :class:`Backend`."""
        places = {entry.on_device for entry in request.table if entry.present}
        if True not in places:
            return self._host.prepare(request)
        way = self._staged if self._direct is None or self.refusal else self._direct
        if False not in places:
            return _Parts(way.prepare(request), None)
        device, host = _split(request, True), _split(request, False)
        return _Parts(way.prepare(device), self._host.prepare(host))

    def mean(self, prepared: Any) -> list[Any]:
        """See :class:`Backend`; what is on a GPU stays there."""
        if not isinstance(prepared, _Parts):
            return self._host.mean(prepared)
        means = self._mean_on_device(prepared.device)
        if prepared.host is not None:
            others = self._host.mean(prepared.host)
            means = [a if a is not None else b for a, b in zip(means, others, strict=True)]
        return means

    def close(self) -> None:
        """See :class:`Backend`."""
        for way in (self._direct, self._staged, self._host):
            if way is not None:
                way.close()
        self._settled = None

    def _mean_on_device(self, prepared: Any) -> list[Any]:
        direct, way = self._direct, self._staged
        request: MeanRequest = prepared.request
        if direct is not None:
            self._wait_for_workers()
            if self._goes_directly(direct, prepared.device):
                way = direct
        if isinstance(prepared, Packed) != (way is direct):
            # It was prepared for the other way before ranks had met, or renewed.
            prepared = prepare_together(
                self._link, "multi_node_mean_grad", lambda: way.prepare(request)
            )
        return way.mean(prepared)

    def _wait_for_workers(self) -> None:
        """Let averagings in the background come to their end; local.

        Two communicators of NCCL must be given their work in one order on all ranks. That in
        which this thread began it is.
        """
        if self._link.worker is not None:
            return  # its thread is such a worker's
        busy = under_way()
        if busy:
            try:
                self._link.wait(
                    lambda: all(worker.idle() for worker in busy), "a mean in the background"
                )
            except BaseException as error:
                self._link.fail(error)
                raise

    def _goes_directly(self, direct: DeviceMeans, device: int) -> bool:
        """Say which way what is on GPUs goes; collective until that is settled."""
        generation = self._link.generation
        if self._settled != generation:
            refusal = direct.carrier.settle(device)
            if refusal is not None and self.refusal is None and self._link.rank == 0:
                warnings.warn(
                    f"what is on GPUs is added up in host memory: {refusal}",
                    RuntimeWarning,
                    stacklevel=2,
                )
            self.refusal = refusal
            self._settled = generation
        return self.refusal is None


def _split(request: MeanRequest, on_device: bool) -> MeanRequest:
    """Return the request for what is on GPUs, or for what is not."""
    table: Table = tuple(
        entry if entry.on_device == on_device else entry._replace(present=False)
        for entry in request.table
    )
    arrays = [
        array if entry.present else None for entry, array in zip(table, request.arrays, strict=True)
    ]
    return request._replace(table=table, arrays=arrays)
