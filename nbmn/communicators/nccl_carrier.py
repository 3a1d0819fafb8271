"""Adds up what lies on GPUs by NCCL.

NCCL has a stream of its own, which events order with the one on which the rank computes. Ranks wait
for the end in the one way in which all is waited for, so that an interrupt is seen at once,
whatever the device is busy with; meanwhile they look after NCCL and each other.
"""

from __future__ import annotations

import functools
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nbmn.communicators import objects, transport
from nbmn.communicators.arrays import summing_dtype
from nbmn.communicators.carriers import SLICE, Buffers
from nbmn.communicators.errors import (
    BrokenCommunicatorError,
    CollectiveTimeoutError,
    MismatchError,
    NcclError,
)
from nbmn.communicators.interrupts import HeldInterrupt
from nbmn.communicators.link import Link, Pending
from nbmn.communicators.topology import host_identity
from nbmn.communicators.waiting import wait
from nbmn.gpu.identity import identify, odd_ones, reason_to_stage
from nbmn.gpu.launcher import Task
from nbmn.gpu.nccl import SUM, NcclComm, NcclFailure, kind_of
from nbmn.gpu.nccl_channel import Channel
from nbmn.gpu.runtime import Event, Gpu

START = 120.0
"""Seconds that NCCL gets to start, unless the communicator's timeout is shorter."""

_CHECK = 1e-3  # seconds between questions to NCCL
_LOOK = 1.0  # seconds between looks at where the other ranks are
_ROUND = 50e-3  # seconds after which ranks tell each other again how the start goes
_GRACE = 5.0  # seconds that NCCL gets to let go of a communicator
_NAME = b"\0"


def by_nccl(own: np.dtype, rounded: np.dtype | None) -> np.dtype:
    """Return the dtype in which NCCL adds: that to which values are rounded, where they are."""
    dtype = summing_dtype(own) if rounded is None else rounded
    kind_of(dtype)
    return dtype


class NcclCarrier:
    """See :class:`~nbmn.communicators.carriers.Carrier`."""

    travelling = staticmethod(by_nccl)

    def __init__(self, link: Link, gpu: Gpu) -> None:
        self._link = link
        self._gpu = gpu
        self._channel: Channel | None = None
        self._forget: Callable[[], Any] | None = None

    def settle(self, device: int) -> str | None:
        """Start NCCL, or go on with what was left whole; collective.

        Raises
        ------
        MismatchError
            On all ranks: they have different versions of NCCL or CuPy.
        NcclError
            On all ranks: it did not start on some, or not in time.
        """
        mine = identify(self._gpu, host_identity(), device)
        told = objects.allgather(self._link, (mine, self._standing(device)))
        identities = [identity for identity, _ in told]
        refusal = reason_to_stage(identities)
        if refusal is None:
            odd = odd_ones(identities)
            if odd is not None:
                raise MismatchError(f"{odd}; install the same on all hosts")
            standings = [standing for _, standing in told]
            if standings[0] is None or any(standing != standings[0] for standing in standings):
                self._start(device)
        return refusal

    def add(self, buffers: Buffers, ready: Event, device: int) -> None:
        """Replace each buffer by its sum over ranks; collective."""
        self._carry(_all_reduce, buffers, ready, device)

    def bcast(self, buffers: Buffers, ready: Event, device: int, root: int) -> None:
        """Replace each buffer by the root's, as bytes; collective."""
        self._carry(functools.partial(_broadcast, root), buffers, ready, device)

    def _carry(
        self, begin: Callable[..., None], buffers: Buffers, ready: Event, device: int
    ) -> None:
        channel, link, runtime = self._channel, self._link, self._gpu.runtime
        assert channel is not None
        link.ledger.traffic += sum(buffer.nbytes for _, buffer in buffers)  # for the recorder
        try:
            if channel.device != device:
                raise NcclError(
                    f"NCCL was started on GPU {channel.device}, and these arrays are on GPU "
                    f"{device}: make another communicator for them"
                )
            calls = functools.partial(begin, buffers, runtime.pointer)
            # Alone, nobody can be late or gone: the device waits, and this rank goes on.
            alone = link.size == 1 and link.worker is None
            task = channel.enqueue(ready, calls, to_the_end=not alone)
            self._wait(channel, task)
            done: Event = task.result()
            if alone:
                runtime.hold(runtime.compute_stream(), done)
        except NcclFailure as failure:
            error = NcclError(f"rank {link.rank}: {failure}")
            self._fail(error, buffers)
            raise error from failure
        except BaseException as error:
            self._fail(error, buffers)
            raise

    def close(self) -> None:
        """Let go of NCCL's communicator; local."""
        ending = self._end("destroy")
        if ending is not None:
            try:
                wait(ending.done, _GRACE)
            except CollectiveTimeoutError:
                return  # its thread goes on

    def _standing(self, device: int) -> Any:
        """Say what there is on this device to go on with; if all ranks say the same, they can."""
        channel = self._channel
        if channel is None or channel.device != device:
            return None
        return channel.unique_id, channel.operations

    def _start(self, device: int) -> None:
        link = self._link
        self._end("abort")
        name = self._name()
        patience = START if link.timeout is None else min(START, link.timeout)
        try:
            with HeldInterrupt():
                channel = self._channel = Channel(self._gpu, device, link.size, name, link.rank)
                # Let go of with its communicator; not at exit, where nothing can be relied on.
                end = weakref.finalize(self, channel.destroy)
                end.atexit = False
                self._forget = end.detach
            # It has an end of its own, at which all tell each other, those too that failed early.
            with link.patience(2 * patience + _GRACE):
                failed, problem = self._outcome(channel, patience)
            if failed:
                with link.patience(_GRACE):
                    told = objects.allgather(link, problem)
        except BaseException as error:
            self._fail(error, ())
            raise
        if failed:
            self._end("abort")
            raise NcclError(_not_started(told))

    def _name(self) -> bytes:
        """Return a new communicator's unique id, from rank 0; collective."""
        note = b""
        if self._link.rank == 0:
            try:
                note = _NAME + self._gpu.nccl.unique_id()
            except NcclFailure as failure:
                note = str(failure).encode()
        note = transport.bcast_note(self._link, note, 0)
        if not note.startswith(_NAME):
            raise NcclError(f"rank 0 cannot name a communicator: {note.decode()}")
        return note.removeprefix(_NAME)

    def _outcome(self, channel: Channel, patience: float) -> tuple[bool, str | None]:
        """Wait until NCCL has started on all ranks, or failed on one; collective.

        Returns
        -------
        Whether it failed on some rank, and why it did not start here, if so.
        """
        until = time.monotonic() + patience
        while True:
            problem, started = self._has_started(channel, until)
            if problem is None and not started and time.monotonic() > until:
                problem = f"it waited {patience:g} s for the other ranks"
            news = np.array([problem is not None, problem is None and not started], np.uint8)
            self._run_watched(transport.start_max(self._link, news))
            failed, to_come = news
            if failed and problem is None and not started:
                problem = "it waited for the other ranks"
            if failed or not to_come:
                return bool(failed), problem

    def _has_started(self, channel: Channel, until: float) -> tuple[str | None, bool]:
        """Wait for a round; return why NCCL did not start, if so, and whether it did."""
        round_ends = min(time.monotonic() + _ROUND, until)
        task = channel.started
        try:
            self._wait(channel, task, lambda: task.done(SLICE) or time.monotonic() > round_ends)
            if task.done():
                task.result()
                return None, True
        except BrokenCommunicatorError:
            raise
        except (RuntimeError, ValueError, OSError, MemoryError) as error:
            return str(error), False
        return None, False

    def _run_watched(self, operation: Pending) -> None:
        """Finish an operation that ranks which are gone will not join."""
        self._link.wait(self._unless_departed(operation.test), "the other ranks")
        self._link.finish(operation)

    def _wait(self, channel: Channel, task: Task, test: Callable[[], bool] | None = None) -> None:
        """Wait for a task, or ``test`` of it, while NCCL and the other ranks are well."""
        test = self._unless_departed(test or functools.partial(task.done, SLICE))
        test = _looking(test, channel.check, _CHECK, first=0.0)
        self._link.wait(test, "the other ranks", task.done)

    def _unless_departed(self, test: Callable[[], bool]) -> Callable[[], bool]:
        """Return a test that raises if it cannot become true: other ranks have gone on."""

        def look() -> None:
            gone = self._link.departed()
            if gone is not None and not test():
                raise BrokenCommunicatorError(f"rank {self._link.rank}: {gone}")

        return _looking(test, look, _LOOK, first=_LOOK)

    def _fail(self, error: BaseException, keep: Buffers) -> None:
        with HeldInterrupt():
            self._link.fail(error)
            self._end("abort", keep)

    def _end(self, way: str, keep: Buffers = ()) -> Task | None:
        channel, self._channel = self._channel, None
        if channel is None:
            return None
        if self._forget is not None:
            self._forget()
        return channel.abort(keep) if way == "abort" else channel.destroy()


def _looking(
    test: Callable[[], bool], look: Callable[[], object], every: float, first: float
) -> Callable[[], bool]:
    """Return ``test``; while it is false it looks, first after so many seconds."""
    due = time.monotonic() + first

    def over() -> bool:
        nonlocal due
        if test():
            return True
        now = time.monotonic()
        if now > due:
            due = now + every
            look()
        return False

    return over


def _all_reduce(
    buffers: Buffers, pointer: Callable[[Any], int], comm: NcclComm, stream: int
) -> None:
    for packing, buffer in buffers:
        kind, parts = kind_of(packing.dtype)
        at = pointer(buffer)
        comm.all_reduce(at, at, packing.size * parts, kind, SUM, stream)


def _broadcast(
    root: int, buffers: Buffers, pointer: Callable[[Any], int], comm: NcclComm, stream: int
) -> None:
    kind, _ = kind_of(np.dtype(np.uint8))
    for _, buffer in buffers:
        at = pointer(buffer)
        comm.broadcast(at, at, buffer.nbytes, kind, root, stream)


def _not_started(told: Sequence[str | None]) -> str:
    lines = "; ".join(f"rank {rank}: {text}" for rank, text in enumerate(told) if text)
    fine = [str(rank) for rank, text in enumerate(told) if not text]
    others = f"; on rank{'s' * (len(fine) > 1)} {', '.join(fine)} it did" if fine else ""
    remedy = "NCCL_DEBUG=INFO says what it tries; communicator 'flat' does without NCCL"
    return f"NCCL did not start: {lines}{others}; {remedy}"
