"""After an interrupt NCCL is given up and made anew, memory is freed, and means are right."""

from __future__ import annotations

import check_interrupt
from gpu_tools import Report, measured
from gpu_values import averages, free_memory, interrupted, spin, stream_of_its_own

from nbmn.communicators import world

ROUNDS = 8
KEPT = 64 << 20
"""Bytes that may stay in use: what CUDA and NCCL load when first used."""


def run(report: Report) -> None:
    spin(0.0)
    with stream_of_its_own():
        again(1)
        before = free_memory()
        again(ROUNDS)
        after = free_memory()
    report("aborts", rounds=ROUNDS, mebibytes_more_in_use=(before - after) / 2**20)
    measured("bytes more in use after aborts", before - after, KEPT)
    assert world().abandoned == 0


def again(rounds: int) -> None:
    """Interrupt, renew, average; with one communicator, and its user's objects as they were."""
    comm, call = check_interrupt.background()
    averages(comm)
    for seed in range(rounds):
        call()  # values are compared, which waits in CUDA
        spin(0.6)
        interrupted(call, after=0.2)
        assert world().renew() is True
        assert comm.broken is None
        for dtype in ("float32", "float16"):
            averages(comm, dtype, seed)
    comm.finalize()
