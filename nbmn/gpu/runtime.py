"""What is needed of a device runtime: memory, streams, events, and the device of this thread."""

from __future__ import annotations

import functools
import os
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from nbmn.gpu.nccl import NcclApi

Stream = Any
Event = Any


class Runtime(Protocol):
    """CuPy's, or what stands for it in tests; everything is local.

    An *array* is one on the device. Streams and events are the runtime's own and are
    only handed back to it.
    """

    def problem(self) -> str | None:
        """Return why no device can be used here, or None."""

    def version(self) -> str:
        """Return the name and version of the runtime."""

    def uuid(self, device: int) -> str:
        """Return what no other device has, of whichever host; empty where it is not known.

        Parts of one GPU (MIG) have their own.
        """

    def bus_id(self, device: int) -> str:
        """Return what no other GPU of the host has, the same for parts of one."""

    def current_device(self) -> int:
        """Return the number of the device that this thread uses."""

    def device_of(self, array: Any) -> int:
        """Return the number of the device on which an array lies."""

    def use(self, device: int) -> None:
        """Make this thread use a device from now on."""

    def on(self, device: int) -> AbstractContextManager[Any]:
        """Make this thread use a device while the context is entered."""

    def empty(self, size: int, dtype: np.dtype) -> Any:
        """Return a flat array on this thread's device; of uint16 for bfloat16."""

    def pinned(self, size: int, dtype: np.dtype) -> np.ndarray:
        """Return flat host memory that the device copies from and to without waiting."""

    def pointer(self, array: Any) -> int:
        """Return the address of an array."""

    def stream(self) -> Stream:
        """Return a new stream that waits for no other."""

    def compute_stream(self) -> Stream:
        """Return the stream on which this thread computes."""

    def computing_on(self, stream: Stream) -> AbstractContextManager[Any]:
        """Make this thread compute on a stream of its device while the context is entered."""

    def handle(self, stream: Stream) -> int:
        """Return what NCCL knows a stream by."""

    def record(self, stream: Stream) -> Event:
        """Return an event that is reached when all that the stream has been given is done."""

    def reached(self, event: Event) -> bool:
        """Say whether an event is reached; raises what went wrong on the device."""

    def await_(self, event: Event) -> None:
        """Wait until an event of this thread's device is reached, which leaves the core and the
        interpreter to others; raises what went wrong on the device."""

    def hold(self, stream: Stream, event: Event) -> None:
        """Let a stream go on when an event is reached."""

    def download(self, array: Any, host: np.ndarray) -> None:
        """Copy to pinned memory, on the stream on which this thread computes."""

    def upload(self, host: np.ndarray, array: Any) -> None:
        """Copy from pinned memory, on the stream on which this thread computes."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """What this process uses devices by."""

    runtime: Runtime
    nccl: NcclApi

    def problem(self) -> str | None:
        """Return why NCCL cannot be used here, or None; local."""
        return self.runtime.problem() or self.nccl.problem()


DRIVER = "NBMN_NCCL_DRIVER"
"""Environment variable: ``cupy`` (the default) or ``nccl4py``."""


@functools.cache
def this_gpu() -> Gpu:
    """Return CuPy's runtime, and NCCL by CuPy or by what the environment names; loads neither.

    Raises
    ------
    ValueError
        There is no such driver.
    """
    from nbmn.gpu.cupy_runtime import CupyRuntime
    from nbmn.gpu.nccl_cupy import CupyNccl
    from nbmn.gpu.nccl_nvidia import NvidiaNccl

    drivers = {"cupy": CupyNccl, "nccl4py": NvidiaNccl}
    name = os.environ.get(DRIVER, "cupy")
    if name not in drivers:
        raise ValueError(f"{DRIVER} must be one of {', '.join(drivers)}, not {name!r}")
    return Gpu(CupyRuntime(), drivers[name]())
