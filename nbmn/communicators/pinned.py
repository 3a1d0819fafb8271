"""Host memory to which a device copies, and from which it does, while the host goes on."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field

import numpy as np

from nbmn.communicators.carriers import keep_until
from nbmn.gpu.runtime import Event, Runtime


@dataclass(slots=True)
class _Held:
    """What is held, apart from who holds it: a device may need it for longer."""

    memory: dict[tuple[int, str], np.ndarray] = field(default_factory=dict)
    replaced: list[np.ndarray] = field(default_factory=list)
    """By larger memory, while the device may yet copy to it."""
    copied: dict[int, Event] = field(default_factory=dict)
    """By device: reached when it is through with the copies begun so far."""


class PinnedMemory:
    """Memory that is used again; it is let go of when the device is through with it, not before.

    Freed earlier it would be handed out again, and be written to by copies of somebody else's.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._held = _Held()
        weakref.finalize(self, _let_go, runtime, self._held).atexit = False

    def take(self, device: int, dtype: np.dtype, size: int) -> np.ndarray:
        """Return ``size`` elements, the same memory for a device and dtype where it is enough."""
        memory, key = self._held.memory, (device, dtype.str)
        held = memory.get(key)
        if held is None or held.size < size:
            if held is not None:
                self._held.replaced.append(held)
            held = memory[key] = self._runtime.pinned(size, dtype)
        return held[:size]

    def in_turn(self) -> None:
        """Let this thread's stream go on when copies begun earlier, on whichever, are done."""
        for event in self._held.copied.values():
            self._runtime.hold(self._runtime.compute_stream(), event)

    def copied(self, device: int) -> Event:
        """Return what is reached when the copies that this thread's stream was given are done."""
        event = self._runtime.record(self._runtime.compute_stream())
        self._held.copied[device] = event
        return event

    def through(self) -> None:
        """Take note that the device is through with all copies."""
        self._held.replaced.clear()

    def let_go(self) -> None:
        """Let go of all memory; local, does not wait. Usable again afterwards."""
        _let_go(self._runtime, self._held)


def _let_go(runtime: Runtime, held: _Held) -> None:
    memory = (*held.memory.values(), *held.replaced)
    held.memory.clear()
    held.replaced.clear()
    if memory:
        for device, event in held.copied.items():
            keep_until(runtime, event, device, memory)
    held.copied.clear()
