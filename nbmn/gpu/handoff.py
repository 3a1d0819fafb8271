"""What one thread computes on a device is taken up by another, and handed back."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from nbmn.gpu.runtime import Event, Runtime

_Result = TypeVar("_Result")


class Handoff:
    """Lets another thread compute on the stream of the one that makes this; local.

    Streams that are each thread's own go by one name, and are others on another thread. So the
    threads' streams wait for each other too, which costs nothing where they are the same.
    """

    def __init__(self, runtime: Runtime, device: int) -> None:
        self._runtime = runtime
        self._device = device
        self._written: Event | None = None
        with runtime.on(device):
            self._stream = runtime.compute_stream()
            self._ready = runtime.record(self._stream)

    def run(self, job: Callable[[], _Result]) -> _Result:
        """Do a job on the other thread."""
        runtime = self._runtime
        with runtime.on(self._device), runtime.computing_on(self._stream):
            runtime.hold(runtime.compute_stream(), self._ready)
            result = job()
            self._written = runtime.record(runtime.compute_stream())
        return result

    def take_back(self) -> None:
        """Let what this thread's stream is given from now on have what the job computed."""
        runtime, written = self._runtime, self._written
        if written is not None:
            with runtime.on(self._device):
                runtime.hold(runtime.compute_stream(), written)
