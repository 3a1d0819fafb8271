"""Worker processes of MultiprocessIterator: how they start, and that they end."""

from __future__ import annotations

import atexit
import functools
import os
import threading
import weakref
from types import ModuleType

from nbmn.compat.repair import Repair, StandIn, seeing

_GRACE = 1.0
"""Seconds that workers get at exit to end the examples they are at."""


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
        _fetch_setup=start_worker,
    )

    original = module.MultiprocessIterator._initialize_loop

    @functools.wraps(original)
    def _initialize_loop(self):
        original(self)
        _living().add(self)

    module.MultiprocessIterator._initialize_loop = _initialize_loop


REPAIRS = (
    Repair(
        "chainer.iterators.multiprocess_iterator",
        "iterators ended at exit, workers that repair Chainer first, no Thread.setDaemon",
        "an iterator that was not finalized hangs Python 3.13 at exit; spawned workers "
        "could not import Chainer and were replaced for ever; setDaemon is deprecated",
        after=_multiprocess_iterator,
    ),
)
