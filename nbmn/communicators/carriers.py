"""What adds up buffers that lie on GPUs, and how numbers travel in them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from nbmn.communicators.arrays import summing_dtype
from nbmn.communicators.link import Link
from nbmn.communicators.parameters import BFLOAT16, Packing, Table, check_averages, lay_out
from nbmn.gpu.launcher import Task, aside
from nbmn.gpu.packing import as_dtype
from nbmn.gpu.placement import on_device
from nbmn.gpu.runtime import Event, Runtime

Buffers = Sequence[tuple[Packing, Any]]
"""Packings, and arrays on the device laid out by them."""

Travelling = Callable[[np.dtype, np.dtype | None], np.dtype]
"""Returns the dtype in which values of a dtype are added, if they are rounded to another first;
raises TypeError where they cannot be."""

SLICE = 1e-3
"""Seconds that a wait leaves the interpreter to the thread that it waits for, at a time."""

LINE = 16
"""Bytes; what begins at a multiple is copied fastest."""


class Carrier(Protocol):
    """Adds up what lies on the ranks' GPUs, without copying it to the host."""

    travelling: Travelling

    def settle(self, device: int) -> str | None:
        """Make ready, if it is not, for what lies on this rank's ``device``; collective.

        Returns
        -------
        None, or why it cannot be used on these ranks; the same on all.
        """

    def add(self, buffers: Buffers, ready: Event, device: int) -> None:
        """Replace each buffer by its sum over ranks; collective, when :meth:`settle` agreed.

        What this thread's stream computes next has the sums.

        Parameters
        ----------
        ready
            Reached when the buffers are written.
        """

    def bcast(self, buffers: Buffers, ready: Event, device: int, root: int) -> None:
        """Replace each buffer, of whatever dtype, by the root's; like :meth:`add`."""

    def close(self) -> None:
        """Let go of what it holds, on all ranks; local. Usable again afterwards."""


@functools.lru_cache(maxsize=64)
def plan(
    travelling: Travelling, table: Table, wire: str | None, *, averages: bool = True
) -> tuple[Packing, ...]:
    """Lay out what is present in buffers of the dtypes in which it travels; equal on all ranks.

    Parameters
    ----------
    averages
        Sums are to be divided, which those of integers cannot be.

    Raises
    ------
    ImportError, TypeError
        Some dtype cannot be had, or its values cannot be added, or have no mean in it.
    """
    rounded = None if wire is None else as_dtype(wire)

    def in_buffer(own: np.dtype) -> np.dtype:
        if averages:
            check_averages(own)
        return travelling(own, rounded if own.kind == "f" else None)

    return lay_out(table, in_buffer, LINE)


def on_host(own: np.dtype, rounded: np.dtype | None) -> np.dtype:
    """Return the dtype in which host memory adds: it has no narrow ones."""
    if rounded is not None and rounded.name == BFLOAT16:
        return np.dtype(np.float32)
    return summing_dtype(rounded or own)


def wait_for_device(
    link: Link, runtime: Runtime, event: Event, device: int, keep: Any = None
) -> None:
    """Wait until an event of this rank's own GPU is reached; local.

    A thread sleeps until the device wakes it: who asks from time to time asks too late, and
    meanwhile the device has nothing to do. It keeps ``keep`` until then, whoever stops waiting:
    pinned memory that others are given meanwhile would yet be written to.
    """
    if runtime.reached(event):
        return
    task = _asleep(runtime, event, device, keep)
    link.wait(lambda: task.done(SLICE), "its own GPU", task.done)
    task.result()


def keep_until(runtime: Runtime, event: Event, device: int, keep: Any) -> None:
    """Keep what a device works on until it reaches an event; local, does not wait."""
    try:
        if runtime.reached(event):
            return
    except RuntimeError:
        return  # it has failed, and does nothing any more
    _asleep(runtime, event, device, keep)


def _asleep(runtime: Runtime, event: Event, device: int, keep: Any) -> Task:
    def sleep(keep: Any = keep) -> None:
        runtime.use(device)
        runtime.await_(event)

    return aside(sleep, "nbmn-event")


class _Placed(Protocol):
    """A request, or gradients."""

    @property
    def arrays(self) -> Sequence[Any]:
        """Gradients, or None."""

    @property
    def home(self) -> Any:
        """An array on the GPU on which they are, or None."""


def device_of(placed: _Placed, runtime: Runtime) -> int:
    """Return the number of the device on which gradients are; this thread's if they are on none."""
    arrays = (*placed.arrays, placed.home)
    first = next((array for array in arrays if array is not None and on_device(array)), None)
    return runtime.current_device() if first is None else runtime.device_of(first)
