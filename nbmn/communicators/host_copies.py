"""Arrays on GPUs as copies in host memory: one copy there and one back, however many they are."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nbmn.communicators.carriers import LINE, wait_for_device
from nbmn.communicators.link import Link
from nbmn.communicators.parameters import Entry, Packing, lay_out
from nbmn.communicators.pinned import PinnedMemory
from nbmn.gpu.packing import pack, unpack_into
from nbmn.gpu.placement import on_device
from nbmn.gpu.runtime import Event, Runtime


@dataclass(frozen=True, slots=True)
class _Part:
    """Arrays of one dtype on one device."""

    device: int
    packing: Packing
    buffer: Any
    """On the device."""
    copy: np.ndarray
    """In pinned memory."""


class HostCopies:
    """Begins to copy, without waiting; local.

    Parameters
    ----------
    arrays
        NumPy or CuPy, of any layout, size and dtype, on any devices; or None.
    """

    def __init__(self, link: Link, runtime: Runtime, arrays: Sequence[Any]) -> None:
        self._link = link
        self._runtime = runtime
        self._arrays = arrays
        self._memory = PinnedMemory(runtime)
        self._parts: list[_Part] = []
        self._ready: list[tuple[Event, int]] = []
        for device in devices_of(arrays, runtime):
            with runtime.on(device):
                self._begin(device)

    def arrays(self) -> list[Any]:
        """Return the arrays, those on devices as copies, once they are there; they may be
        written to. Waits for this rank's own devices only."""
        for event, device in self._ready:
            wait_for_device(self._link, self._runtime, event, device, self._copies())
        arrays = list(self._arrays)
        for part in self._parts:
            for span in part.packing.spans:
                arrays[span.index] = part.copy[span.begin : span.end].reshape(span.shape)
        return arrays

    def write_back(self, changed: Collection[int]) -> None:
        """Give arrays on devices what was written to their copies, and wait for that."""
        runtime, written = self._runtime, []
        for part in self._parts:
            if not any(span.index in changed for span in part.packing.spans):
                continue
            with runtime.on(part.device):
                runtime.upload(part.copy, part.buffer)
                unpack_into(part.buffer, part.packing, self._arrays, changed)
                written.append((self._memory.copied(part.device), part.device))
        for event, device in written:
            wait_for_device(self._link, runtime, event, device, self._copies())

    def let_go(self) -> None:
        """Let go of the memory, once devices are through with it; does not wait."""
        self._memory.let_go()

    def _begin(self, device: int) -> None:
        runtime = self._runtime
        try:
            for packing in lay_out_values(self._arrays, runtime, device, LINE):
                buffer = runtime.empty(packing.size, packing.dtype)
                pack(buffer, packing, self._arrays)
                copy = self._memory.take(device, packing.dtype, packing.size)
                runtime.download(buffer, copy)
                self._parts.append(_Part(device, packing, buffer, copy))
        finally:
            self._ready.append((self._memory.copied(device), device))

    def _copies(self) -> list[np.ndarray]:
        return [part.copy for part in self._parts]


def devices_of(arrays: Sequence[Any], runtime: Runtime) -> list[int]:
    """Return the numbers of the devices on which arrays lie."""
    return sorted({runtime.device_of(array) for array in arrays if on_device(array)})


def lay_out_values(
    arrays: Sequence[Any], runtime: Runtime, device: int, line: int = 1
) -> tuple[Packing, ...]:
    """Lay out the arrays that lie on a device in one buffer per dtype.

    Parameters
    ----------
    line
        Every array begins at a multiple of so many bytes.
    """
    table = tuple(
        Entry(str(number), array.shape, array.dtype.str, True)
        if on_device(array) and runtime.device_of(array) == device
        else Entry(str(number), None, "", False)
        for number, array in enumerate(arrays)
    )
    return lay_out(table, lambda own: own, line)
