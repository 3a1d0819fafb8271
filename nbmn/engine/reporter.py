"""Metrics out, commands in: one socket and one daemon thread per rank.

The training loop only appends to a deque; the thread makes records of what gathered
and sends them at most :data:`RATE` times a second, with a heartbeat that says what the
rank is doing. It goes on answering while the main thread is stuck in a blocking call,
since those release the interpreter lock.
"""

from __future__ import annotations

import functools
import logging
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from nbmn.engine.informants import Console, Lookout, Tracer
from nbmn.engine.reported import hold, read
from nbmn.messages import Endpoint
from nbmn.phases import phases
from nbmn.records import (
    Heartbeat,
    Record,
    RunEnded,
    RunStarted,
    Said,
    Stack,
    Step,
    Timeline,
    encode,
)

RATE = 5.0
"""Batches per second at most."""
HEARTBEAT = 0.35
"""Seconds between two heartbeats; the thread comes by at multiples of 1 / RATE."""
BATCH = 500
"""Records in one message at most."""
OUTBOX = 20_000
"""Records kept until they are sent; older ones are dropped."""
SILENCE = 60.0
"""Seconds without a ping after which a rank on another host believes the notebook dead."""


_Queued = tuple[str, float, int, dict[str, Any], int | None, float | None]
"""A step: run, time, iteration, values, samples, epoch."""


class Reporter:
    """This process's line to the notebook.

    Until :meth:`connect` is called everything reported is dropped at once, so
    that a script costs nothing under plain ``mpiexec``.
    """

    def __init__(self) -> None:
        self.rank = 0
        self.lookout: Lookout | None = None
        """Asked by the thread."""
        self.tracer: Tracer | None = None
        """Asked by the thread."""
        self.console: Console | None = None
        """While this rank is debugged."""
        # Bounded: of a loop that reports faster than can be sent, the newest steps count.
        self._outbox: deque[Record | _Queued] = deque(maxlen=OUTBOX)
        self._run = ""
        self._since = time.monotonic()
        self._iteration = 0
        self._started = False
        self._complained = False
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        # A pipe wakes the thread out of its poll; a byte more when full changes nothing.
        self._woken, self._waker = os.pipe()
        os.set_blocking(self._waker, False)
        self._cancelled: deque[str] = deque(maxlen=16)
        self._freed = ""

    @property
    def connected(self) -> bool:
        return self._thread is not None

    @property
    def run(self) -> str:
        """The cell execution that is running, or ``""``."""
        return self._run

    def connect(self, rank: int, endpoint: Endpoint, expect_pings: bool) -> None:
        """Start the thread. Local; a second call does nothing."""
        if self._thread is not None:
            return
        self.rank = rank
        self._thread = threading.Thread(
            target=self._serve, args=(endpoint, expect_pings), name="nbmn-reporter", daemon=True
        )
        self._thread.start()

    @property
    def has_reported(self) -> bool:
        """Whether the running cell has reported anything."""
        return self._started

    def begin(self, run: str) -> None:
        """A cell starts on this rank.

        Raises
        ------
        KeyboardInterrupt
            It was interrupted before it started.
        """
        with self._lock:
            self._run, self._since = run, time.monotonic()
            self._iteration, self._started = 0, False
            if run in self._cancelled:
                raise KeyboardInterrupt

    def end(self, status: str, message: str = "") -> None:
        """The cell has ended; ``status`` as in :class:`nbmn.records.RunEnded`.

        What it reported leaves at once: the notebook waits for the last of it.
        """
        with self._lock:
            run, self._run, self._since = self._run, "", time.monotonic()
        if self._started:
            self._started = False
            self.send(RunEnded(self.rank, run, time.time(), status, message))
            self._wake()

    def start_run(
        self, title: str = "", iterations: int | None = None, epochs: float | None = None
    ) -> None:
        """Announce a training run, once per cell."""
        self._started = True
        self.send(RunStarted(self.rank, self._run, time.time(), title, iterations, epochs))

    def step(
        self,
        values: dict[str, Any],
        samples: int | None = None,
        iteration: int | None = None,
        epoch: float | None = None,
    ) -> None:
        """Queue one step; returns within microseconds and never blocks.

        ``values`` is kept, and must not be changed afterwards.
        """
        if self._thread is None or not self._run:
            return
        if not self._started:
            self.start_run()
        # Between two steps the caches hold the user's work, and what runs here costs ten times
        # its usual time: so as little as possible, and the thread makes the record.
        if iteration is None:
            self._iteration += 1
        else:
            self._iteration = int(iteration)
        values = hold(values)
        if samples is not None:
            samples = int(samples)
        if epoch is not None:
            epoch = float(epoch)
        phases().report_step()
        self._outbox.append((self._run, time.time(), self._iteration, values, samples, epoch))

    def say(self, text: str, question: int = 0, last: bool = False) -> None:
        """Queue text for the notebook, as :class:`nbmn.records.Said`; waits while there is much."""
        while len(self._outbox) > OUTBOX // 2:
            time.sleep(0.001)  # as a terminal does; nothing that is printed gets lost
        self.send(Said(self.rank, self._run, time.time(), text, question, last))
        if question or last:
            self._wake()

    def send(self, record: Record) -> None:
        """Queue a record; of any thread. Without a notebook it is dropped."""
        if self._thread is not None:
            self._outbox.append(record)

    def _wake(self) -> None:
        try:
            os.write(self._waker, b"w")
        except BlockingIOError:
            return  # it is full of earlier calls

    # The thread.

    def _serve(self, endpoint: Endpoint, expect_pings: bool) -> None:
        import zmq

        socket = zmq.Context.instance().socket(zmq.DEALER)
        socket.setsockopt(zmq.IDENTITY, str(self.rank).encode())
        socket.setsockopt(zmq.LINGER, 0)
        socket.curve_serverkey = endpoint.server_key
        socket.curve_publickey = endpoint.public_key
        socket.curve_secretkey = endpoint.secret_key
        socket.connect(endpoint.url)
        poller = zmq.Poller()
        poller.register(socket, zmq.POLLIN)
        poller.register(self._woken, zmq.POLLIN)
        heard, beat = time.monotonic(), 0.0
        while True:
            batch: list[Record] = []
            if time.monotonic() - beat > HEARTBEAT:
                beat = time.monotonic()
                batch.append(self._told(self.heartbeat))
            behind = self._flush(socket, batch)
            # A command is answered at once; so is the wish to send.
            ready = dict(poller.poll(0 if behind else 1000 / RATE))
            if self._woken in ready:
                os.read(self._woken, 4096)
            if socket in ready:
                command, *arguments = socket.recv_multipart()
                heard = time.monotonic()
                if command == b"interrupt":
                    self._interrupt(arguments[0].decode())
                elif command == b"free":
                    self._free(arguments[0].decode())
                elif command == b"answer":
                    self._answer(*arguments)
                elif command == b"where":
                    socket.send(encode([self._told(self.stack)]))
                elif command == b"trace":
                    tell = functools.partial(self.timeline, int(arguments[0]))
                    socket.send(encode([self._told(tell)]))
            elif expect_pings and time.monotonic() - heard > SILENCE:
                os._exit(1)

    def _told(self, tell: Callable[[], Record]) -> Record:
        """What ``tell`` gives, or a bare heartbeat: interrupts depend on this thread."""
        try:
            return tell()
        except Exception:  # noqa: BLE001 - it is logged
            self._complain("cannot tell what this rank does")
            return Heartbeat(self.rank, self._run, time.time(), "running" if self._run else "idle")

    def _flush(self, socket: Any, batch: list[Record]) -> bool:
        """Send what is in ``batch`` and what gathered; says whether more is left.

        Not all at once: a loop that reports without pause must not keep the thread from
        heartbeats and interrupts.
        """
        count = min(len(self._outbox), BATCH)
        batch += [self._record(self._outbox.popleft()) for _ in range(count)]
        if batch:
            socket.send(encode(batch))
        return bool(self._outbox)

    def _record(self, queued: Record | _Queued) -> Record:
        if not isinstance(queued, tuple):
            return queued
        run, now, iteration, values, samples, epoch = queued
        return Step(self.rank, run, now, iteration, read(values), samples, epoch)

    def heartbeat(self) -> Heartbeat:
        """What this rank is doing at this moment; may be called by any thread."""
        run, since, look = self._run, self._since, self.lookout
        beat = Heartbeat(self.rank, run, time.time(), "running" if run else "idle")
        seconds = time.monotonic() - since
        if look is None:
            return replace(beat, seconds=seconds)
        beat = replace(beat, threads=look.threads())
        begun = look.begun()
        console = self.console
        asked = console.seconds if console is not None else None
        if console is not None and asked is not None:
            where = console.where or look.line()
            return replace(beat, state="debugging", where=where, seconds=asked, begun=begun)
        waits = look.waits() if run else None
        if waits is not None:
            operation, where, seconds, wait = waits
            return replace(
                beat,
                state="waiting",
                operation=operation,
                where=where,
                seconds=seconds,
                wait=wait,
                begun=begun,
            )
        where, blocked = (look.line(), look.blocked()) if run else ("", "")
        return replace(beat, where=where, seconds=seconds, blocked=blocked, begun=begun)

    def timeline(self, steps: int) -> Timeline:
        """What this rank did in its last steps; may be called by any thread."""
        if self.tracer is not None:
            return self.tracer.timeline(steps)
        return Timeline(self.rank, self._run, time.time(), time.monotonic(), ())

    def stack(self) -> Stack:
        """Where this rank is at this moment; may be called by any thread."""
        frames = self.lookout.stack() if self.lookout is not None and self._run else ()
        return Stack(self.rank, self._run, time.time(), frames, self.heartbeat())

    def _interrupt(self, run: str) -> None:
        # Under the lock the run cannot change, so a late interrupt never hits the next cell.
        with self._lock:
            if run == self._run:
                console = self.console
                if console is not None:
                    console.closed = True
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
                if console is not None:
                    console.answer(0, "")  # Python drops an interrupt that lands in a finalizer
                self._interrupt_threads()
            else:
                self._cancelled.append(run)  # ended already, or not begun yet

    def _free(self, run: str) -> None:
        again, self._freed = run == self._freed, run
        # What the user's code has SIGINT call is no answer to a wait that the user did not stop.
        if self.lookout is None or (not again and self.lookout.takes_interrupts()):
            self._interrupt(run)
            return
        with self._lock:
            if run == self._run:
                self._interrupt_threads(main=True)

    def _interrupt_threads(self, main: bool = False) -> None:
        if self.lookout is not None:
            try:
                self.lookout.interrupt_threads(main)
            except Exception:  # noqa: BLE001 - it is logged
                self._complain("cannot interrupt what waits in threads")

    def _complain(self, text: str) -> None:
        if not self._complained:
            self._complained = True  # once, for it would come with every heartbeat
            logging.getLogger(__name__).exception(text)

    def _answer(self, run: bytes, question: bytes, text: bytes) -> None:
        console = self.console
        if console is not None and run.decode() == self._run:
            console.answer(int(question), text.decode())


@functools.cache
def reporter() -> Reporter:
    """The one reporter of this process."""
    return Reporter()


def report(
    *,
    samples: int | None = None,
    iteration: int | None = None,
    epoch: float | None = None,
    total: int | None = None,
    **values: Any,
) -> None:
    """Show this step on the live board. Local, and never waits.

    Call it once per step from any loop. In a notebook's rank the first call
    of a cell opens the board; elsewhere (a script under ``mpiexec``) it does
    nothing. Where no phase named ``update`` is marked, it ends a step of ``%mn_trace``.

    Parameters
    ----------
    samples
        Samples this rank processed in this step; gives the board samples/s.
    iteration
        Step number, from 1. Counted by itself when left out.
    epoch
        Epochs done, with the fraction of the current one.
    total
        Steps in all, for progress and the time left; read in the first call.
    **values
        Named scalars, such as ``loss=loss``: numbers, 0-d NumPy or CuPy
        arrays, Chainer variables.

    Raises
    ------
    TypeError
        A value is text, or an array of several numbers.

    Examples
    --------
    >>> for step in range(3):
    ...     report(loss=1 / (step + 1), samples=32, total=3)
    """
    line = reporter()
    if not line.connected:
        return
    if total is not None and line.run and not line.has_reported:
        line.start_run(iterations=int(total))
    line.step(values, samples, iteration, epoch)
