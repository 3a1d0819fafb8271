"""Worker processes of MultiprocessIterator: how they start, and that they end."""

from __future__ import annotations

import atexit
import contextlib
import functools
import multiprocessing
import os
import pickle
import sys
import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.context import SpawnProcess
from multiprocessing.pool import Pool
from types import ModuleType
from typing import Any

from nbmn.compat.repair import Repair, StandIn, seeing

_GRACE = 1.0
"""Seconds that workers get at exit to end the examples they are at."""

_NO_MPI = "MPI4PY_RC_INITIALIZE"
"""With "0", importing mpi4py.MPI does not initialise MPI."""


@dataclass(frozen=True, slots=True)
class _Failure:
    """Takes the place of a batch."""

    error: Exception


class _Thread(threading.Thread):
    def setDaemon(self, daemonic: bool) -> None:
        self.daemon = daemonic


def start_worker(dataset, mem_size, mem_bulk) -> None:
    """Prepare a worker process.

    Unpickling this function's name imports nbmn, and so repairs Chainer, before
    anything of Chainer is unpickled in a spawned process.
    """
    from chainer.iterators import multiprocess_iterator

    multiprocess_iterator._fetch_setup(dataset, mem_size, mem_bulk)


class _ByValue:
    """A dataset on its way to a worker; also of a class that no module of the worker has."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __reduce__(self) -> Any:
        import cloudpickle

        return read_dataset, (cloudpickle.dumps(self._dataset),)


def read_dataset(pickled: bytes) -> Any:
    """Return a worker's dataset."""
    # In a server that was started early the environment does not say it yet.
    os.environ[_NO_MPI] = "0"
    return pickle.loads(pickled)


class _SpawnedWorker(SpawnProcess):
    """Takes no part in MPI, also if it takes the place of one that has ended."""

    @staticmethod
    def _Popen(process: Any) -> Any:
        with _without_mpi():
            return SpawnProcess._Popen(process)


class _Pool(Pool):
    @staticmethod
    def Process(context: Any, *args: Any, **kwds: Any) -> Any:
        spawns = context.get_start_method() == "spawn"
        return (_SpawnedWorker if spawns else context.Process)(*args, **kwds)

    def map_async(self, func: Any, iterable: Any, chunksize: Any = None, *more: Any) -> Any:
        if chunksize is None:
            # Python divides by the number of workers, of which all may just be being replaced.
            iterable = list(iterable)
            chunksize = max(1, -(-len(iterable) // (4 * self._processes)))
        return super().map_async(func, iterable, chunksize, *more)


def start_pool(processes, initializer, initargs, maxtasksperchild):
    """Start the worker processes.

    Raises
    ------
    RuntimeError
        They would be forks of a process that takes part in MPI.
    """
    method = multiprocessing.get_start_method(allow_none=True)
    if (method or multiprocessing.get_all_start_methods()[0]) == "fork":
        if _talks_over_mpi():
            raise RuntimeError(
                "MultiprocessIterator would fork this process, which is a rank of an MPI job, and "
                "neither MPI nor CUDA work in forks: call multiprocessing.set_start_method("
                "'forkserver', force=True) before the iterator is made (see docs/loading.md), "
                "or use chainer.iterators.MultithreadIterator"
            )
    else:
        dataset, *memory = initargs
        initargs = (_ByValue(dataset), *memory)
    with _without_mpi():  # a server that is started now, too
        return _Pool(processes, initializer, initargs, maxtasksperchild)


def _talks_over_mpi() -> bool:
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is None or not mpi.Is_initialized() or mpi.Is_finalized():
        return False
    return mpi.COMM_WORLD.Get_size() > 1


@contextlib.contextmanager
def _without_mpi() -> Iterator[None]:
    """Have processes that are started meanwhile take no part in MPI when they import mpi4py.

    They would take themselves for the rank that started them.
    """
    with _environment():
        before = os.environ.get(_NO_MPI)
        os.environ[_NO_MPI] = "0"
        try:
            yield
        finally:
            if before is None:
                del os.environ[_NO_MPI]
            else:
                os.environ[_NO_MPI] = before


@functools.cache
def _environment() -> threading.RLock:
    """Return what is held while it is changed: each pool replaces its workers on a thread."""
    return threading.RLock()


@functools.cache
def _living() -> weakref.WeakSet:
    """Return this process' iterators, which are ended when it exits."""
    living: weakref.WeakSet = weakref.WeakSet()
    # Registered after multiprocessing's own exit function, so called before it.
    import multiprocessing.util  # noqa: F401

    atexit.register(_finalize, living)
    # A forked process inherits the iterators, but their workers are its parent's.
    os.register_at_fork(after_in_child=living.clear)
    return living


def _finalize(living: weakref.WeakSet) -> None:
    loops = [it._prefetch_loop for it in living if it._prefetch_loop is not None]
    for loop in loops:
        loop._comm.terminate()
        loop._terminating = True
    for loop in loops:
        if loop._thread is not None:
            loop._thread.join(_GRACE)
            if loop._thread.is_alive():
                # An example is still being made, maybe for ever.
                loop._pool.terminate()
    for iterator in list(living):
        iterator.finalize()


def _multiprocess_iterator(module: ModuleType) -> None:
    loop = module._PrefetchLoop
    loop.launch_thread = seeing(
        loop.launch_thread,
        threading=StandIn(threading, Thread=_Thread),
        multiprocessing=StandIn(multiprocessing, Pool=start_pool),
        _fetch_setup=start_worker,
    )

    task = loop._task

    @functools.wraps(task)
    def _task(self):
        try:
            return task(self)
        except Exception as error:  # noqa: BLE001 - raised in who asks for the batch
            self._comm.put(_Failure(error), self.prefetch_state, self._comm._reset_count)
            return True

    loop._task = _task
    get = module._Communicator.get

    @functools.wraps(get)
    def _get(self):
        batch, state = get(self)
        if isinstance(batch, _Failure):
            raise batch.error
        return batch, state

    module._Communicator.get = _get
    original = module.MultiprocessIterator._initialize_loop

    @functools.wraps(original)
    def _initialize_loop(self):
        original(self)
        _living().add(self)

    module.MultiprocessIterator._initialize_loop = _initialize_loop


REPAIRS = (
    Repair(
        "chainer.iterators.multiprocess_iterator",
        "iterators ended at exit, errors of the dataset raised, workers that repair Chainer first, "
        "no forks of MPI ranks, no Thread.setDaemon",
        "an iterator that was not finalized hangs Python 3.13 at exit; one whose dataset "
        "raises waits for ever for the batch; spawned workers "
        "could not import Chainer and were replaced for ever; forks of a rank crash or hang; "
        "setDaemon is deprecated",
        after=_multiprocess_iterator,
    ),
)
