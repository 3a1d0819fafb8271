"""Faults to practise with: one rank fails, at a step that was chosen.

A fault is made on all ranks and strikes on one of them. Call it in a loop, once per step,
or have something call it: :func:`inject` wraps a communicator, an optimizer, an iterator or a
dataset, and leaves the wrapped object as it is.

>>> from nbmn.debug import faults
>>> fault = faults.raising(rank=1, at_step=3)
>>> for x, t in batches:                              # doctest: +SKIP
...     fault()
...     optimizer.update(model, x, t)
>>> comm = faults.inject(comm, faults.skipping(rank=0), operation="allreduce")  # doctest: +SKIP

Ranks are counted among all ranks of the world, steps from 1.
"""

from __future__ import annotations

import itertools
import os
import signal as signals
import tempfile
import time
from collections import deque
from collections.abc import Callable, Sized
from pathlib import Path
from typing import Any

import numpy as np

from nbmn.communicators import world
from nbmn.debug.alteration import alter
from nbmn.debug.injection import Skipped, inject

__all__ = [
    "Fault",
    "hanging",
    "inject",
    "killing",
    "misshaping",
    "poisoning",
    "raising",
    "recasting",
    "skipping",
    "slowing",
    "uneven",
]


def __dir__() -> list[str]:
    """The faults, and what puts them into place; not what this module imports."""
    return sorted(__all__)


class Fault:
    """Strikes on one rank; made by the functions of this module.

    Calling it counts a step, and strikes if it is the one.
    """

    def __init__(
        self,
        rank: int,
        at_step: int,
        strike: Callable[[Any], Any],
        *,
        lasting: bool = False,
        skips: bool = False,
    ) -> None:
        size = world().size
        if not 0 <= rank < size:
            raise ValueError(f"there is no rank {rank} to strike: ranks are 0 to {size - 1}")
        if at_step < 1:
            raise ValueError(f"steps are counted from 1, so at_step cannot be {at_step}")
        self.rank = rank
        self.at_step = at_step
        self.lasting = lasting
        """It strikes at every later step as well."""
        self.skips = skips
        """It makes what it is put into leave its work undone."""
        self.step = 0
        """Steps so far."""
        self._strike = strike

    def __call__(self) -> None:
        """Count a step; strike if it is the one. Local."""
        self.meet(None)

    def meet(self, value: Any) -> Any:
        """Count a step; return ``value``, or what the fault makes of it. Local."""
        self.step += 1
        due = self.step >= self.at_step if self.lasting else self.step == self.at_step
        return self._strike(value) if due and world().rank == self.rank else value


def raising(rank: int, at_step: int = 1, error: BaseException | None = None) -> Fault:
    """Raise an exception; by default a RuntimeError that says it was injected."""

    def strike(value: Any) -> Any:
        raise error or RuntimeError(f"injected on rank {rank} at step {at_step}")

    return Fault(rank, at_step, strike)


def slowing(rank: int, seconds: float, at_step: int = 1, *, busy: bool = False) -> Fault:
    """Take ``seconds`` longer, at this step and all later ones; ``busy`` keeps a core at work."""

    def strike(value: Any) -> Any:
        _spin(seconds) if busy else time.sleep(seconds)
        return value

    return Fault(rank, at_step, strike, lasting=True)


def hanging(rank: int, at_step: int = 1, how: str = "loop", seconds: float = float("inf")) -> Fault:
    """Go on no more.

    Parameters
    ----------
    how
        ``loop``: in Python code; ``sleep``: in a system call; ``read``: reading from a pipe to
        which nobody writes, for ever; ``native``: in native code that holds the interpreter
        lock, so that no other thread of the rank runs, and no interrupt comes through.
    seconds
        For how long; by default, until it is interrupted.
    """
    ways = {"loop": _spin, "sleep": _sleep, "read": _read, "native": _hold}
    if how not in ways:
        raise ValueError(f"how must be one of {', '.join(ways)}, not {how!r}")

    def strike(value: Any) -> Any:
        ways[how](seconds)
        return value

    return Fault(rank, at_step, strike)


def killing(rank: int, at_step: int = 1, signal: int = signals.SIGKILL) -> Fault:
    """Send this process a signal: SIGKILL ends it as the out-of-memory killer does, SIGSTOP
    stops it."""

    def strike(value: Any) -> Any:
        os.kill(os.getpid(), signal)
        return value

    return Fault(rank, at_step, strike)


def poisoning(
    rank: int, at_step: int = 1, value: float = float("nan"), *, lasting: bool = False
) -> Fault:
    """Put a NaN (or ``value``) into the first number of the first array of floats."""

    def poisoned(array: Any) -> Any:
        if array.dtype.kind != "f" or array.size == 0:
            return None
        changed = array.copy()
        changed.reshape(-1)[0] = value
        return changed

    return Fault(rank, at_step, lambda whole: alter(whole, poisoned), lasting=lasting)


def misshaping(rank: int, at_step: int = 1, *, lasting: bool = False) -> Fault:
    """Make the first array longer by one along its first axis."""

    def longer(array: Any) -> Any:
        if array.ndim == 0:
            return None
        shape = (array.shape[0] + 1, *array.shape[1:])
        changed = np.zeros_like(array, shape=shape)
        changed[:-1] = array
        return changed

    return Fault(rank, at_step, lambda whole: alter(whole, longer), lasting=lasting)


def recasting(rank: int, dtype: Any, at_step: int = 1, *, lasting: bool = False) -> Fault:
    """Give the first array of floats another dtype."""

    def recast(array: Any) -> Any:
        return array.astype(dtype) if array.dtype.kind == "f" else None

    return Fault(rank, at_step, lambda whole: alter(whole, recast), lasting=lasting)


def skipping(rank: int, at_step: int = 1, *, lasting: bool = False) -> Fault:
    """Leave out a collective, or an optimizer's update; to be put into one by :func:`inject`."""

    def strike(value: Any) -> Any:
        raise Skipped

    return Fault(rank, at_step, strike, lasting=lasting, skips=True)


def uneven(dataset: Sized, rank: int, fewer: int = 1) -> Any:
    """Take the last examples of a dataset away on one rank; local.

    Returns
    -------
    The dataset itself on other ranks.

    Raises
    ------
    ValueError
        On all ranks: there is no such rank, or ``fewer`` is negative.
    """
    Fault(rank, 1, lambda value: value)
    if fewer < 0:
        raise ValueError(f"fewer must not be negative, but is {fewer}")
    if world().rank != rank:
        return dataset
    from chainer.datasets import SubDataset

    return SubDataset(dataset, 0, max(0, len(dataset) - fewer))


def _spin(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


def _sleep(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(min(3600.0, max(0.0, end - time.monotonic())))


def _read(seconds: float) -> None:
    if seconds != float("inf"):
        raise ValueError("reading from a pipe lasts until it is interrupted; leave seconds out")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "nobody_writes"
        os.mkfifo(path)
        path.read_bytes()


def _hold(seconds: float) -> None:
    # One call into C that never looks for signals and never releases the interpreter.
    count = 10**6
    began = time.perf_counter()
    deque(itertools.repeat(None, count), maxlen=0)
    rate = count / (time.perf_counter() - began)
    deque(itertools.repeat(None, int(min(seconds, 1e6) * rate)), maxlen=0)
