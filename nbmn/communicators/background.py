"""Averages gradients on a thread of its own, while the rank goes on computing.

It talks over a duplicate of the communicator, so that its collectives and the user's do not mix.
While a job is under way the links of the duplicate belong to its thread.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import threading
import warnings
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from nbmn.communicators import models
from nbmn.communicators.activity import collective_over
from nbmn.communicators.carriers import device_of
from nbmn.communicators.errors import BrokenCommunicatorError, CollectiveTimeoutError
from nbmn.communicators.interrupts import HeldInterrupt
from nbmn.communicators.models import Averaged, Gradients, Terms
from nbmn.communicators.runtime import mpi
from nbmn.communicators.waiting import wait
from nbmn.gpu.handoff import Handoff

if TYPE_CHECKING:
    from nbmn.communicators.backend import Backend
    from nbmn.communicators.communicator import Communicator
    from nbmn.communicators.link import Link, Uid

_GRACE = 3.0
"""Seconds that a job gets at exit to come to its end."""


class Worker:
    """Does one job at a time on a thread; local.

    What it was given to do is counted, alike on all ranks where all is in order: a renewal
    tells from that whether a job will end by itself.

    Parameters
    ----------
    uid
        Of the link that all ranks share for whom jobs are done; there may be others beside it.
    threaded
        Use a thread; otherwise a job is done when it is started.
    """

    def __init__(self, uid: Uid, *, threaded: bool = True) -> None:
        self.uid = uid
        self.started = 0
        """Jobs since the last renewal."""
        self._threaded = threaded
        self._over = True
        self._stopped = False
        self._result: Any = None
        self._error: BaseException | None = None

    def start(self, job: Callable[[], Any]) -> None:
        """Begin a job; the one before must be over.

        Without a thread an interrupt of the job is raised here.
        """
        self._result = self._error = None
        if not self._threaded:
            self.started += 1
            self._run(job)
            if self._error is not None and not isinstance(self._error, Exception):
                raise self._error
            return
        _running().add(self)
        thread = threading.Thread(target=self._run, args=(job,), name="nbmn-mean", daemon=True)
        # An interrupt in between would leave a job that never began and is never over.
        with HeldInterrupt():
            self.started += 1
            self._over = False
            try:
                thread.start()
            except BaseException:
                self._over = True
                raise

    def idle(self) -> bool:
        """Say whether nothing is under way."""
        return self._over

    def result(self) -> Any:
        """Return what the last job returned, or raise what it raised."""
        if self._error is not None:
            raise self._error
        return self._result

    def stop(self) -> None:
        """Let the job end, with an error, where it waits for other ranks."""
        self._stopped = True

    def test(self, test: Callable[[], bool]) -> bool:
        """Call ``test`` for a job that waits, unless it is to stop."""
        if self._stopped:
            raise BrokenCommunicatorError("it was stopped")
        return test()

    def reset(self) -> None:
        """Begin anew, with links that are as new."""
        self.started = 0
        self._stopped = False

    def _run(self, job: Callable[[], Any]) -> None:
        try:
            self._result = job()
        except BaseException as error:  # noqa: BLE001 - raised in who asks for the result
            self._error = error
        self._over = True


@functools.cache
def _running() -> weakref.WeakSet[Worker]:
    """Return the workers of this process, whose jobs end before MPI does."""
    workers: weakref.WeakSet[Worker] = weakref.WeakSet()
    atexit.register(_end, workers)
    return workers


def under_way() -> list[Worker]:
    """Return the workers of this process that are at work on threads; local."""
    return [worker for worker in list(_running()) if not worker.idle()]


def _end(workers: weakref.WeakSet[Worker]) -> None:
    late = False
    for worker in list(workers):
        try:
            wait(worker.idle, _GRACE)
        except CollectiveTimeoutError:
            late = True
        worker.stop()
        with contextlib.suppress(CollectiveTimeoutError):
            wait(worker.idle, _GRACE)
    if late:
        warnings.warn(
            f"rank {mpi().COMM_WORLD.rank} ends before the mean of its last gradients has "
            "come: other ranks are late, or made fewer updates; call optimizer.flush() on all "
            "ranks after the last update",
            RuntimeWarning,
            stacklevel=1,
        )


class Background:
    """Averages gradients in the background of a communicator; making one is collective.

    On every rank each :meth:`start` is followed by one :meth:`finish_mean_grad`, or by a renewal.
    An interrupt or timeout while it waits stops the averaging and breaks the communicator, as
    in any other collective.
    """

    def __init__(self, comm: Communicator) -> None:
        own = comm.split(0, comm.rank)
        assert own is not None
        threaded = mpi().Query_thread() >= mpi().THREAD_MULTIPLE
        if not threaded and comm.rank == 0:
            warnings.warn(
                "this MPI was initialised without MPI_THREAD_MULTIPLE: double buffering averages "
                "gradients with its delay, but not while the next ones are computed",
                RuntimeWarning,
                stacklevel=2,
            )
        self.track = comm.track
        self._link = comm._link
        self._comm = comm
        self._own = own
        # What is recorded as a call on it: a rank may be through though others have not called.
        self._averaging = own._link
        self._worker = Worker(own._link.uid, threaded=threaded)
        self._handoff: Handoff | None = None
        for link in (own._link, *own._parts.links):
            link.worker = self._worker
            # Others may be late by a whole step; who waits for the means has the timeout.
            link.timeout = None

    @property
    def generation(self) -> int:
        """How often a renewal has thrown away what was under way; alike on all ranks; local."""
        return self._own._link.generation

    @property
    def lost(self) -> bool:
        """It can no longer be used: some rank does not hold it; alike on all others; local."""
        return self._own._link.lost

    def start(self, gradients: Gradients, terms: Terms) -> None:
        """Begin to average; local.

        NumPy arrays among the gradients may be overwritten by their means.

        Raises
        ------
        BrokenCommunicatorError
            An earlier averaging was left before it was complete.
        """
        link, backend = self._own._link, self._own._parts.gradients
        _ = link.comm  # raises if it is broken
        terms = terms._replace(wire=self._comm._wire)
        self._link.wait(self._worker.idle, "the mean of gradients")
        job = functools.partial(_mean, link, backend, gradients, terms)
        self._handoff = None
        try:
            if any(entry.on_device for entry in gradients.table):
                # Here, in the order in which this thread gives the device its work.
                early = models.prepare(link, backend, gradients, terms)
                job = self._on_device(functools.partial(job, early), gradients)
            self._worker.start(job)
        except BaseException as error:
            link.fail(error)
            raise

    @collective_over("_averaging")
    def finish_mean_grad(self) -> list[Any] | Averaged:
        """Return the means of what was started last, arrays or None; STALE if called off.

        Raises
        ------
        MismatchError, TypeError
            On all ranks: they could not be averaged.
        BrokenCommunicatorError, CollectiveTimeoutError
            Some rank failed, was interrupted, or did not come.
        """
        return self.wait()

    def wait(self) -> list[Any] | Averaged:
        """Like :meth:`finish_mean_grad`, of one rank alone; may be repeated; local."""
        try:
            self._link.wait(self._worker.idle, "the mean of gradients")
        except BaseException as error:
            self._own._link.fail(error)
            self._worker.stop()
            raise
        result = self._worker.result()
        if self._handoff is not None:
            self._handoff.take_back()
        return result

    def _on_device(self, job: Callable[[], Any], gradients: Gradients) -> Callable[[], Any]:
        """Return what does a job after those begun before it, on this thread's stream."""
        runtime, link = self._own._parts.gpu.runtime, self._own._link
        handoff = self._handoff = Handoff(runtime, device_of(gradients, runtime))
        before = under_way()  # NCCL is given its work in one order on all ranks

        def in_order() -> Any:
            try:
                link.wait(lambda: all(worker.idle() for worker in before), "an earlier mean")
            except BaseException as error:
                link.fail(error)
                raise
            return handoff.run(job)

        return in_order


def _mean(
    link: Link,
    backend: Backend,
    gradients: Gradients,
    terms: Terms,
    early: models.Prepared | None = None,
) -> list[Any] | Averaged:
    # What is raised here is raised on all ranks, and leaves nothing under way.
    prepared = models.agree_to_average(link, backend, gradients, terms, early)
    if prepared is None:
        return Averaged.STALE
    try:
        return backend.mean(prepared)
    except BaseException as error:
        link.fail(error)
        raise
