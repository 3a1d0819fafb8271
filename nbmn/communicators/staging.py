"""Averages what lies on GPUs through host memory: one copy there, one back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nbmn.communicators.agreement import prepare_together
from nbmn.communicators.backend import Backend, MeanRequest
from nbmn.communicators.carriers import device_of, on_host, plan, wait_for_device
from nbmn.communicators.link import Link
from nbmn.communicators.parameters import Entry, Packing, Table
from nbmn.communicators.pinned import PinnedMemory
from nbmn.gpu.packing import pack, unpack
from nbmn.gpu.runtime import Event, Runtime


@dataclass(frozen=True, slots=True)
class _Prepared:
    """This rank's gradients, on their way to the host."""

    request: MeanRequest
    packings: Sequence[Packing]
    buffers: Sequence[Any]
    copies: Sequence[np.ndarray]
    ready: Event
    device: int


class StagedMeans:
    """Packs gradients on the device, and lets a backend of the host average them.

    They are rounded to the request's dtype, and added in one in which the host can add.
    """

    def __init__(self, link: Link, host: Backend, runtime: Runtime) -> None:
        self._link = link
        self._host = host
        self._runtime = runtime
        self._memory = PinnedMemory(runtime)

    def prepare(self, request: MeanRequest) -> _Prepared:
        """Begin to copy gradients to the host; local, does not wait."""
        runtime = self._runtime
        packings = plan(on_host, request.table, request.wire)
        device = device_of(request, runtime)
        buffers, copies = [], []
        with runtime.on(device):
            # What an averaging that was called off copies there may yet come, on another stream.
            self._memory.in_turn()
            try:
                for packing in packings:
                    buffer = runtime.empty(packing.size, packing.dtype)
                    pack(buffer, packing, request.arrays, wire=request.wire)
                    copy = self._memory.take(device, packing.dtype, packing.size)
                    runtime.download(buffer, copy)
                    buffers.append(buffer)
                    copies.append(copy)
            finally:
                ready = self._memory.copied(device)
        return _Prepared(request, packings, buffers, copies, ready, device)

    def mean(self, prepared: _Prepared) -> list[Any]:
        """Return the means, on the device; collective."""
        try:
            return self._mean(prepared)
        except BaseException as error:
            self._link.fail(error)
            raise

    def _mean(self, prepared: _Prepared) -> list[Any]:
        runtime, request = self._runtime, prepared.request
        wait_for_device(self._link, runtime, prepared.ready, prepared.device, prepared.copies)
        self._memory.through()
        flat = MeanRequest(_flat(prepared), prepared.copies, request.total)
        # Between gradients there is what was there before; and a GPU says nothing of overflow.
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            inner = prepare_together(
                self._link, "multi_node_mean_grad", lambda: self._host.prepare(flat)
            )
            averaged = self._host.mean(inner)
        means: list[Any] = [None] * len(request.table)
        parts = zip(prepared.packings, prepared.buffers, prepared.copies, averaged, strict=True)
        with runtime.on(prepared.device):
            for packing, buffer, copy, mean in parts:
                if mean is not copy:
                    np.copyto(copy, mean)
                runtime.upload(copy, buffer)
                for index, part in enumerate(unpack(buffer, packing, request.arrays)):
                    if part is not None:
                        means[index] = part
            uploaded = self._memory.copied(prepared.device)
        # The next averaging writes to the same memory.
        wait_for_device(self._link, runtime, uploaded, prepared.device, prepared.copies)
        return means

    def close(self) -> None:
        """Let go of memory; local."""
        self._memory.let_go()


def _flat(prepared: _Prepared) -> Table:
    return tuple(
        Entry(f"gradients in {packing.dtype}", (packing.size,), packing.dtype.str, True)
        for packing in prepared.packings
    )
