"""Values on GPUs are replaced by another rank's without passing through host memory."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nbmn.communicators.carriers import Buffers, Carrier
from nbmn.communicators.host_copies import lay_out_values
from nbmn.communicators.link import Link
from nbmn.gpu.packing import pack, unpack_into
from nbmn.gpu.runtime import Event, Runtime

PIECE = 1 << 26
"""Elements that are compared at once: what tells of each whether it differs takes memory too."""


@dataclass(frozen=True, slots=True)
class PackedValues:
    """This rank's values in buffers."""

    arrays: Sequence[Any]
    own: Buffers
    fresh: Buffers
    """To be overwritten by the root's; at the root its own."""
    ready: Event
    device: int


class DeviceValues:
    """Packs, lets a carrier broadcast, and unpacks: one buffer per dtype."""

    def __init__(self, link: Link, runtime: Runtime, carrier: Carrier) -> None:
        self._link = link
        self._runtime = runtime
        self._carrier = carrier

    def prepare(self, arrays: Sequence[Any], device: int, root: int) -> PackedValues:
        """Pack values that lie on one device; local, does not wait."""
        runtime = self._runtime
        own, fresh = [], []
        with runtime.on(device):
            # Without gaps, in which there is anything: buffers are compared as a whole.
            for packing in lay_out_values(arrays, runtime, device):
                buffer = runtime.empty(packing.size, packing.dtype)
                pack(buffer, packing, arrays)
                own.append((packing, buffer))
                if self._link.rank != root:
                    buffer = runtime.empty(packing.size, packing.dtype)
                fresh.append((packing, buffer))
            ready = runtime.record(runtime.compute_stream())
        return PackedValues(arrays, tuple(own), tuple(fresh), ready, device)

    def bcast(self, packed: PackedValues, root: int) -> None:
        """Bring the root's values to all ranks; collective, when the carrier is settled.

        The root may be through before others have begun.
        """
        try:
            with self._runtime.on(packed.device):
                self._carrier.bcast(packed.fresh, packed.ready, packed.device, root)
        except BaseException as error:
            self._link.fail(error)
            raise

    def replace(self, packed: PackedValues, root: int) -> bool:
        """Take the values that came, and say whether this rank had others; local."""
        with self._runtime.on(packed.device):
            return self._link.rank != root and _replace(packed)


def _replace(packed: PackedValues) -> bool:
    differ = []
    for (packing, before), (_, buffer) in zip(packed.own, packed.fresh, strict=True):
        one, other = _bits(before), _bits(buffer)
        for at in range(0, packing.size, PIECE):
            differ.append((one[at : at + PIECE] != other[at : at + PIECE]).any())
        unpack_into(buffer, packing, packed.arrays)
    # One question to the device, however many dtypes.
    return bool(functools.reduce(operator.or_, differ)) if differ else False


def _bits(values: Any) -> Any:
    # NaN is equal to itself then, and 0.0 differs from -0.0.
    return values.view(np.dtype(f"u{min(values.dtype.itemsize, 8)}"))
