"""An interrupt is seen within 50 ms, however long the GPU is busy; then all goes on."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import chainer
import numpy as np
from gpu_tools import STANDIN, Report, each, measured
from gpu_values import averages, interrupted, model_of, put, same, spin, stream_of_its_own

import nbmn
from nbmn.communicators import world

MOST = 0.05
"""Seconds."""
BUSY = 2.0
TIMES = 1 if STANDIN else 3


def run(report: Report) -> None:
    spin(0.0)  # compiles
    with stream_of_its_own():
        ways = [partial(seen, report, way) for way in (background, staged) for _ in range(TIMES)]
        each(*ways, *([] if STANDIN else [partial(copies, report)]))


def seen(report: Report, way: Callable[[], tuple[Any, Callable[[], object]]]) -> None:
    """Interrupt, renew, and be right."""
    comm, call = way()
    averages(comm)
    call()  # values are compared and kernels compiled
    spin(BUSY)
    late = interrupted(call)
    began = time.perf_counter()
    renewed = world().renew()
    healed = time.perf_counter() - began
    began = time.perf_counter()
    averages(comm, seed=1)
    right = time.perf_counter() - began
    report(
        way.__name__,
        milliseconds_until_seen=1e3 * late,
        milliseconds_to_renew=1e3 * healed,
        seconds_to_the_next_means=right,
        renewed=renewed,
    )
    measured(f"seconds until the interrupt was seen, {way.__name__}", late, MOST)
    comm.finalize()


def background():
    """Double buffering waits for NCCL on a thread, and this rank for the thread."""
    comm = nbmn.create_communicator("pure_nccl", timeout=60)
    model, _ = model_of(0, 1)
    given = [(param, param.grad) for param in model.params()]
    optimizer = nbmn.create_multi_node_optimizer(
        chainer.optimizers.SGD(lr=0.0), comm, double_buffering=True
    )
    optimizer.setup(model)

    def call() -> None:
        for param, grad in given:
            param.grad = grad
        optimizer.update()
        optimizer.flush()

    return comm, call


def staged():
    """What goes through host memory waits for its own copy."""
    comm = nbmn.create_communicator("non_cuda_aware", timeout=60)
    model, _ = model_of(0, 1)
    return comm, lambda: comm.multi_node_mean_grad(model)


def copies(report: Report) -> None:
    """Arrays of other collectives are read by CuPy's own copy, which waits in CUDA: a figure."""
    comm = nbmn.create_communicator("pure_nccl", timeout=60)
    array = put(np.arange(6, dtype="f"))
    spin(1.0)
    try:
        late = interrupted(lambda: comm.allgather(array))
    except AssertionError as error:
        report("allgather behind a kernel", of_one_second=str(error))
    else:
        report("allgather behind a kernel of 1 s", milliseconds_until_seen=1e3 * late)
    world().renew()
    same(comm.allgather(array)[0], np.arange(6, dtype="f"))
    comm.finalize()
