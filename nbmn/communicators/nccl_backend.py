"""Averages what lies on GPUs over NCCL.

Packing, casting and scaling is one kernel on the stream on which the rank computes; NCCL has a
stream of its own, and events order the two. Ranks wait for the end in the one way in which all is
waited for, so that an interrupt is seen at once, whatever the device is busy with.
"""

from __future__ import annotations

import functools
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from nbmn.communicators import objects, transport
from nbmn.communicators.arrays import on_device, summing_dtype
from nbmn.communicators.backend import MeanRequest
from nbmn.communicators.errors import (
    BrokenCommunicatorError,
    CollectiveTimeoutError,
    NcclError,
)
from nbmn.communicators.interrupts import HeldInterrupt
from nbmn.communicators.link import Link
from nbmn.communicators.parameters import Entry, Packing, Table, lay_out
from nbmn.communicators.waiting import wait
from nbmn.gpu.launcher import Task
from nbmn.gpu.nccl import SUM, NcclComm, NcclFailure, kind_of
from nbmn.gpu.nccl_channel import Channel
from nbmn.gpu.packing import as_dtype, pack, unpack
from nbmn.gpu.runtime import Event, Gpu

START = 120.0
"""Seconds that NCCL gets to start, unless the communicator's timeout is shorter."""

_LINE = 16  # bytes; what begins at a multiple is copied fastest
_LOOK = 1.0  # seconds between looks at where the other ranks are
_GRACE = 5.0  # seconds that NCCL gets to let go of a communicator

_NAME = b"\0"

_Buffers = Sequence[tuple[Packing, Any]]


@dataclass(frozen=True, slots=True)
class _Prepared:
    """This rank's gradients, packed."""

    request: MeanRequest
    buffers: _Buffers
    ready: Event
    device: int


class NcclMeans:
    """Sums and averages over one communicator of NCCL, started by :meth:`start`."""

    def __init__(self, link: Link, gpu: Gpu) -> None:
        self._link = link
        self._gpu = gpu
        self._channel: Channel | None = None
        self._forget: Callable[[], Any] | None = None

    def device_of(self, arrays: Sequence[Any]) -> int:
        """Return the number of the device on which arrays lie; this thread's if there are none."""
        runtime = self._gpu.runtime
        first = next((array for array in arrays if array is not None and on_device(array)), None)
        return runtime.current_device() if first is None else runtime.device_of(first)

    def standing(self, device: int) -> Any:
        """Say what there is on this device to go on with; if all ranks say the same, they can."""
        channel = self._channel
        if channel is None or channel.device != device:
            return None
        return channel.unique_id, channel.operations

    def start(self, device: int, standings: Sequence[Any]) -> None:
        """Make a communicator of NCCL, or go on with the one there is; collective.

        Raises
        ------
        NcclError
            On all ranks: it could not be made on some, or not in time.
        """
        link = self._link
        if standings[0] is not None and all(standing == standings[0] for standing in standings):
            return
        self._end("abort")
        name = self._name()
        began = time.monotonic()
        patience = START if link.timeout is None else min(START, link.timeout)
        try:
            with HeldInterrupt():
                channel = self._channel = Channel(self._gpu, device, link.size, name, link.rank)
                # Forgotten on the way, and not at exit, where nothing can be relied on any more.
                end = weakref.finalize(self, channel.abort)
                end.atexit = False
                self._forget = end.detach
            # This has its own end, at which the ranks tell each other, those too that failed first.
            with _timeout(link, 2 * patience + _GRACE):
                problem = self._outcome(channel, began + patience, patience)
                told = objects.allgather(link, problem)
        except BaseException as error:
            self._fail(error, ())
            raise
        if any(told):
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

    def sums(self, dtypes: set[np.dtype]) -> bool:
        """Say whether arrays of all these dtypes can be summed by NCCL."""
        try:
            for dtype in dtypes:
                kind_of(summing_dtype(dtype))
        except TypeError:
            return False
        return True

    def sum(self, arrays: Sequence[Any]) -> list[Any]:
        """Return the sums of arrays over ranks; collective, after :meth:`start`."""
        table = tuple(
            Entry(str(number), array.shape, array.dtype.str, True)
            for number, array in enumerate(arrays)
        )
        prepared = self._pack(MeanRequest(table, arrays, 1))
        return self._run(prepared)

    def prepare(self, request: MeanRequest) -> _Prepared:
        """Pack gradients, divided by how many ranks count; local, does not wait."""
        return self._pack(request)

    def prepared(self, prepared: Any) -> bool:
        """Say whether :meth:`prepare` has made this."""
        return isinstance(prepared, _Prepared)

    def mean(self, prepared: _Prepared) -> list[Any]:
        """Return the means, views into one buffer per dtype where they are of its dtype;
        collective, after :meth:`start`."""
        return self._run(prepared)

    def close(self) -> None:
        """Let go of NCCL's communicator, which all ranks must do; local."""
        ending = self._end("destroy")
        if ending is not None:
            try:
                wait(ending.done, _GRACE)
            except CollectiveTimeoutError:
                return  # its thread goes on

    def _pack(self, request: MeanRequest) -> _Prepared:
        runtime = self._gpu.runtime
        device = self.device_of(request.arrays)
        buffers = []
        with runtime.on(device):
            for packing in plan_sums(request.table, request.wire):
                buffer = runtime.empty(packing.size, packing.dtype)
                # Divided before they are added: sums of narrow dtypes could overflow.
                scale = 1.0 if packing.dtype.kind in "iu" else 1.0 / max(request.total, 1)
                pack(buffer, packing, request.arrays, scale=scale, wire=request.wire)
                buffers.append((packing, buffer))
            ready = runtime.record(runtime.compute_stream())
        return _Prepared(request, tuple(buffers), ready, device)

    def _run(self, prepared: _Prepared) -> list[Any]:
        channel, link = self._channel, self._link
        assert channel is not None
        if channel.device != prepared.device:
            raise NcclError(
                f"rank {link.rank}: NCCL was started on GPU {channel.device}, and these arrays "
                f"are on GPU {prepared.device}: create another communicator for them"
            )
        runtime = self._gpu.runtime
        calls = functools.partial(_all_reduce, prepared.buffers, runtime.pointer)
        try:
            task = channel.enqueue(prepared.ready, calls)
            self._wait(channel, lambda: task.done(1e-3))
            done: Event = task.result()
            if link.size == 1 and link.worker is None:
                # Nobody can be late or gone: what computes next waits, and this rank goes on.
                with runtime.on(channel.device):
                    runtime.hold(runtime.compute_stream(), done)
            else:
                self._wait(channel, lambda: runtime.reached(done))
        except NcclFailure as failure:
            error = NcclError(f"rank {link.rank}: {failure}")
            self._fail(error, prepared.buffers)
            raise error from failure
        except BaseException as error:
            self._fail(error, prepared.buffers)
            raise
        return self._results(prepared)

    def _results(self, prepared: _Prepared) -> list[Any]:
        request = prepared.request
        means: list[Any] = [None] * len(request.table)
        with self._gpu.runtime.on(prepared.device):
            for packing, buffer in prepared.buffers:
                if packing.dtype.kind in "iu" and request.total != 1:
                    buffer[...] = (buffer / request.total).astype(buffer.dtype)
                for index, part in enumerate(unpack(buffer, packing, request.arrays)):
                    if part is not None:
                        means[index] = part
            if self._link.worker is not None:
                # They go to a thread that may compute on another stream.
                written = self._gpu.runtime.record(self._gpu.runtime.compute_stream())
                self._link.wait(lambda: self._gpu.runtime.reached(written), "its own GPU")
        return means

    def _wait(self, channel: Channel, test: Callable[[], bool]) -> None:
        """Wait until ``test`` is true, while NCCL and the other ranks are well."""
        next_look = time.monotonic() + _LOOK

        def over() -> bool:
            nonlocal next_look
            if test():
                return True
            channel.check()
            now = time.monotonic()
            if now > next_look:
                next_look = now + _LOOK
                gone = self._link.departed()
                if gone is not None and not test():
                    raise BrokenCommunicatorError(f"rank {self._link.rank}: {gone}")
            return False

        self._link.wait(over, "the other ranks")

    def _outcome(self, channel: Channel, until: float, patience: float) -> str | None:
        """Wait for NCCL to start; return why it did not, or None."""

        def over() -> bool:
            if channel.started.done(1e-3):
                return True
            if time.monotonic() > until:
                raise _Late
            return False

        try:
            self._wait(channel, over)
        except _Late:
            return f"it waited {patience:g} s for the other ranks"
        except NcclFailure as failure:
            return str(failure)
        try:
            channel.started.result()
        except (RuntimeError, ValueError, OSError, MemoryError) as error:
            return str(error)
        return None

    def _fail(self, error: BaseException, keep: _Buffers) -> None:
        with HeldInterrupt():
            self._link.fail(error)
            self._end("abort", keep)

    def _end(self, way: str, keep: Any = ()) -> Task | None:
        channel, self._channel = self._channel, None
        if channel is None:
            return None
        if self._forget is not None:
            self._forget()
        return channel.abort(keep) if way == "abort" else channel.destroy()


@contextmanager
def _timeout(link: Link, seconds: float) -> Iterator[None]:
    before, link.timeout = link.timeout, seconds
    try:
        yield
    finally:
        link.timeout = before


class _Late(Exception):
    """NCCL did not start in time."""


@functools.lru_cache(maxsize=64)
def plan_sums(table: Table, wire: str | None) -> tuple[Packing, ...]:
    """Lay out what is present in the dtypes in which NCCL adds it up.

    Raises
    ------
    TypeError
        NCCL has no such numbers.
    """
    rounded = None if wire is None else as_dtype(wire)

    def travelling(own: np.dtype) -> np.dtype:
        dtype = summing_dtype(own) if rounded is None or own.kind != "f" else rounded
        kind_of(dtype)
        return dtype

    return lay_out(table, travelling, _LINE)


def _all_reduce(
    buffers: _Buffers, pointer: Callable[[Any], int], comm: NcclComm, stream: int
) -> None:
    for packing, buffer in buffers:
        kind, parts = kind_of(packing.dtype)
        at = pointer(buffer)
        comm.all_reduce(at, at, packing.size * parts, kind, SUM, stream)


def _not_started(told: Sequence[str | None]) -> str:
    lines = "; ".join(f"rank {rank}: {text}" for rank, text in enumerate(told) if text)
    fine = [str(rank) for rank, text in enumerate(told) if not text]
    others = f"; on rank{'s' * (len(fine) > 1)} {', '.join(fine)} it did" if fine else ""
    return f"NCCL did not start: {lines}{others}"
