"""Sums and means of what lies on GPUs, in one buffer per dtype.

Packing, casting and scaling is one kernel on the stream on which the rank computes. Means are views
into the buffer, which lives as long as any of them: each averaging has a buffer of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nbmn.communicators.backend import MeanRequest
from nbmn.communicators.carriers import Buffers, Carrier, device_of, plan
from nbmn.communicators.link import Link
from nbmn.communicators.parameters import Entry
from nbmn.gpu.packing import pack, unpack
from nbmn.gpu.runtime import Event, Runtime


@dataclass(frozen=True, slots=True)
class Packed:
    """This rank's gradients in buffers."""

    request: MeanRequest
    buffers: Buffers
    ready: Event
    device: int


class DeviceMeans:
    """Packs, lets a carrier add, and unpacks."""

    def __init__(self, link: Link, runtime: Runtime, carrier: Carrier) -> None:
        self._link = link
        self._runtime = runtime
        self.carrier = carrier

    def can_add(self, arrays: Sequence[Any]) -> bool:
        """Say whether arrays of such dtypes can be added; the same on all ranks, local."""
        try:
            for array in arrays:
                self.carrier.travelling(array.dtype, None)
        except TypeError:
            return False
        return True

    def request(self, arrays: Sequence[Any]) -> MeanRequest:
        """Return the request for the sums of arrays; local."""
        table = tuple(
            Entry(str(number), array.shape, array.dtype.str, True)
            for number, array in enumerate(arrays)
        )
        return MeanRequest(table, arrays, 1)

    def prepare(self, request: MeanRequest, *, averages: bool = True) -> Packed:
        """Pack gradients, divided by how many ranks count; local, does not wait.

        Parameters
        ----------
        averages
            What comes is means; without it sums, which integers have too.

        Raises
        ------
        TypeError
            On some dtypes there is no such thing.
        """
        runtime = self._runtime
        device = device_of(request, runtime)
        buffers = []
        with runtime.on(device):
            travelling = self.carrier.travelling
            for packing in plan(travelling, request.table, request.wire, averages=averages):
                buffer = runtime.empty(packing.size, packing.dtype)
                # Divided before they are added: sums of narrow dtypes could overflow.
                scale = 1.0 / max(request.total, 1)
                pack(buffer, packing, request.arrays, scale=scale, wire=request.wire)
                buffers.append((packing, buffer))
            ready = runtime.record(runtime.compute_stream())
        return Packed(request, tuple(buffers), ready, device)

    def mean(self, packed: Packed) -> list[Any]:
        """Return the means, on the device; collective, when the carrier is settled."""
        try:
            with self._runtime.on(packed.device):
                self.carrier.add(packed.buffers, packed.ready, packed.device)
                return self._results(packed)
        except BaseException as error:
            self._link.fail(error)
            raise

    def close(self) -> None:
        """Let go of what the carrier holds; local."""
        self.carrier.close()

    def _results(self, packed: Packed) -> list[Any]:
        request = packed.request
        means: list[Any] = [None] * len(request.table)
        for packing, buffer in packed.buffers:
            for index, part in enumerate(unpack(buffer, packing, request.arrays)):
                if part is not None:
                    means[index] = part
        return means
