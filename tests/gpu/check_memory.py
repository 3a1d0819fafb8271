"""Nothing grows with averagings, with renewals, or with communicators that come and go."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import partial

import chainer
import cupy
from check_interrupt import background
from gpu_tools import STANDIN, Report, each, measured
from gpu_values import averages, free_memory, interrupted, model_of, spin, stream_of_its_own

import nbmn
from nbmn.communicators import world

LARGE = ((1024, 1024), (256, 256, 3, 3), (1000,))
MEAN, BCAST = "multi_node_mean_grad", "bcast_data"
SLACK = 8 << 20
"""Bytes between two looks that are no growth; an array of LARGE is 4 MiB."""
LEAK = 1 << 20
"""Bytes for each communicator that NCCL itself may keep."""


def run(report: Report) -> None:
    spin(0.0)
    cases = (
        ("averagings", calls(MEAN), 5, 5 if STANDIN else 200, SLACK),
        ("averagings in the background", in_the_background(), 5, 5 if STANDIN else 100, SLACK),
        ("staged averagings", calls(MEAN, "non_cuda_aware"), 5, 5 if STANDIN else 50, SLACK),
        ("broadcasts", calls(BCAST), 3, 3 if STANDIN else 30, SLACK),
        ("staged broadcasts", calls(BCAST, "non_cuda_aware"), 3, 3 if STANDIN else 30, SLACK),
        ("renewals", renewals(), 2, 2 if STANDIN else 8, SLACK + 8 * LEAK),
        ("communicators", communicators, 3, 3 if STANDIN else 20, SLACK + 20 * LEAK),
    )
    each(*(partial(grown, report, *case) for case in cases))


def grown(
    report: Report, what: str, act: Callable[[], None], first: int, times: int, allowed: int
) -> None:
    """Fail if more is in use after ``times`` more."""
    for _ in range(first):
        act()
    before = state()
    for _ in range(times):
        act()
    after = state()
    names = ("mebibytes_of_the_gpu", "mebibytes_in_the_pool")
    more = [(b - a) / 2**20 for a, b in zip(before, after, strict=True)]
    report(f"growth by {times} {what}", **dict(zip(names, more, strict=True)))
    measured(f"bytes more in the pool after {times} {what}", after[1] - before[1], allowed)
    measured(f"bytes more of the GPU in use after {times} {what}", after[0] - before[0], allowed)


def state() -> tuple[int, int]:
    """Bytes in use of the GPU, and of them in arrays of this process."""
    gc.collect()
    free = free_memory()
    return -free, cupy.get_default_memory_pool().used_bytes()


def calls(method: str, name: str = "pure_nccl") -> Callable[[], None]:
    """Call a communicator's method with two models."""
    call = getattr(nbmn.create_communicator(name, timeout=60), method)
    model, _ = model_of(0, 1, shapes=LARGE)
    other, _ = model_of(0, 1, "float16", shapes=LARGE)

    def act() -> None:
        call(model)
        call(other)

    return act


def in_the_background() -> Callable[[], None]:
    comm = nbmn.create_communicator("pure_nccl", timeout=60)
    model, _ = model_of(0, 1, shapes=LARGE)
    optimizer = nbmn.create_multi_node_optimizer(
        chainer.optimizers.MomentumSGD(lr=0.0), comm, double_buffering=True
    )
    optimizer.setup(model)

    def act() -> None:
        given, _ = model_of(0, 1, shapes=LARGE)
        for number in range(len(LARGE)):
            getattr(model, f"p{number}").grad = getattr(given, f"p{number}").grad
        optimizer.update()

    return act


def renewals() -> Callable[[], None]:
    comm, call = background()

    def act() -> None:
        with stream_of_its_own():
            call()
            spin(0.5)
            interrupted(call, after=0.15)
            world().renew()
            averages(comm)

    return act


def communicators() -> None:
    comm = nbmn.create_communicator("pure_nccl", timeout=60)
    averages(comm)
    comm.finalize()
