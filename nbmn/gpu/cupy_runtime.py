"""The device runtime by CuPy, which is imported when first used."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from nbmn.gpu import driver

if TYPE_CHECKING:
    import cupy

_NOT_READY = 600  # cudaErrorNotReady
_TO_DEVICE, _TO_HOST = 1, 2  # cudaMemcpyKind
_UUID = 16  # bytes


class CupyRuntime:
    """See :class:`~nbmn.gpu.runtime.Runtime`."""

    def problem(self) -> str | None:
        """Return why no device can be used here, or None."""
        try:
            import cupy
        except ImportError as error:
            return f"CuPy cannot be imported ({error}); pip install cupy-cuda13x (or cupy-cuda12x)"
        try:
            count = cupy.cuda.runtime.getDeviceCount()
        except cupy.cuda.runtime.CUDARuntimeError as error:
            return f"CuPy finds no GPU ({error})"
        return None if count else "there is no GPU"

    def version(self) -> str:
        """Return CuPy's version."""
        import cupy

        return f"CuPy {cupy.__version__}"

    def uuid(self, device: int) -> str:
        """Return the device's UUID, 32 hexadecimal digits; empty where it is not known."""
        from cupy.cuda import runtime

        told = driver.uuid(device)
        if not told:
            known = bytes(runtime.getDeviceProperties(device)["uuid"])
            told = known.hex() if len(known) == _UUID else ""  # CuPy ends before a zero byte
        return told

    def bus_id(self, device: int) -> str:
        """Return where the device is on the host's PCI bus."""
        from cupy.cuda import runtime

        return runtime.deviceGetPCIBusId(device)

    def current_device(self) -> int:
        """Return the number of the device that this thread uses."""
        from cupy.cuda import runtime

        return runtime.getDevice()

    def device_of(self, array: cupy.ndarray) -> int:
        """Return the number of the device on which an array lies."""
        return array.device.id

    def use(self, device: int) -> None:
        """Make this thread use a device from now on."""
        from cupy.cuda import Device

        Device(device).use()

    @contextmanager
    def on(self, device: int) -> Iterator[None]:
        """Make this thread use a device while the context is entered; others than the main one
        stay with it."""
        before = self.current_device()
        if before == device:
            yield
            return
        self.use(device)
        try:
            yield
        finally:
            # New threads are on device 0 without having used it, and going back there
            # would take hundreds of megabytes of it, for each rank of the host.
            if threading.current_thread() is threading.main_thread():
                self.use(before)

    def empty(self, size: int, dtype: np.dtype) -> cupy.ndarray:
        """Return a flat array on this thread's device; of uint16 for bfloat16."""
        import cupy

        return cupy.empty(size, np.uint16 if dtype.name == "bfloat16" else dtype)

    def pinned(self, size: int, dtype: np.dtype) -> np.ndarray:
        """Return flat host memory that the device copies from and to without waiting."""
        from cupy.cuda import alloc_pinned_memory

        memory = alloc_pinned_memory(max(size * dtype.itemsize, 1))
        return np.frombuffer(memory, dtype, size)

    def pointer(self, array: cupy.ndarray) -> int:
        """Return the address of an array."""
        return array.data.ptr

    def stream(self) -> Any:
        """Return a new stream that waits for no other."""
        from cupy.cuda import Stream

        return Stream(non_blocking=True)

    def compute_stream(self) -> Any:
        """Return the stream on which this thread computes."""
        from cupy.cuda import get_current_stream

        return get_current_stream()

    def computing_on(self, stream: Any) -> AbstractContextManager[Any]:
        """Make this thread compute on a stream of its device while the context is entered."""
        return stream

    def handle(self, stream: Any) -> int:
        """Return what NCCL knows a stream by."""
        return stream.ptr

    def record(self, stream: Any) -> Any:
        """Return an event that is reached when all that the stream has been given is done."""
        from cupy.cuda import Event

        event = Event(block=True, disable_timing=True)
        event.record(stream)
        return event

    def reached(self, event: Any) -> bool:
        """Say whether an event is reached; raises what went wrong on the device."""
        from cupy.cuda import runtime

        try:
            # Event.done takes an error of the device for an event that is yet to come. Either is
            # kept by CUDA's runtime as its last error, which CUB, where it shares the runtime,
            # would take for its own kernel's. Raising clears it.
            runtime.check_status(runtime.eventQuery(event.ptr))
        except runtime.CUDARuntimeError as error:
            if error.status != _NOT_READY:
                raise
            return False
        return True

    def await_(self, event: Any) -> None:
        """Wait until an event is reached, without the GIL; raises what went wrong."""
        event.synchronize()

    def hold(self, stream: Any, event: Any) -> None:
        """Let a stream go on when an event is reached."""
        stream.wait_event(event)

    def download(self, array: cupy.ndarray, host: np.ndarray) -> None:
        """Copy to pinned memory, on the stream on which this thread computes."""
        self._copy(host.ctypes.data, array.data.ptr, array.nbytes, _TO_HOST)

    def upload(self, host: np.ndarray, array: cupy.ndarray) -> None:
        """Copy from pinned memory, on the stream on which this thread computes."""
        self._copy(array.data.ptr, host.ctypes.data, array.nbytes, _TO_DEVICE)

    def _copy(self, to: int, source: int, nbytes: int, way: int) -> None:
        from cupy.cuda import runtime

        if nbytes:
            runtime.memcpyAsync(to, source, nbytes, way, self.compute_stream().ptr)
