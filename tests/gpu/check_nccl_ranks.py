"""Two ranks by NCCL itself, where it lets them share a GPU, as recent ones do on request.

NCCL does not promise it, and nbmn never asks for it: here it stands for a second GPU.
"""

from __future__ import annotations

import os
import signal
import threading
import time

import numpy as np
from check_collectives import NARROW, SUMMED
from gpu_tools import Report, Skip, measured
from gpu_values import averages, broadcasts, model_of, put, same

from nbmn.communicators import CollectiveTimeoutError, world
from nbmn.communicators.communicator import compose
from nbmn.communicators.errors import CommunicatorError, NcclError
from nbmn.communicators.topology import host_identity
from nbmn.gpu.cupy_runtime import CupyRuntime
from nbmn.gpu.runtime import Gpu, this_gpu

PATIENCE = 15.0
MOST = 0.05
"""Seconds until an interrupt is seen."""


class Apart(CupyRuntime):
    """Says of each process that it has a GPU of its own."""

    def uuid(self, device: int) -> str:
        return f"{super().uuid(device)} of process {os.getpid()}"

    def bus_id(self, device: int) -> str:
        return f"{super().bus_id(device)} of process {os.getpid()}"


def run(report: Report) -> None:
    comm = started()
    averages(comm)
    for seed, dtype in enumerate(("float16", "float32", "float64")):
        averages(comm, dtype, seed)
    for wire in ("float16", "bfloat16"):
        comm.set_config("allreduce_grad_dtype", wire)
        averages(comm, "float32", 5, wire)
    comm.set_config("allreduce_grad_dtype", None)
    for dtype in SUMMED:
        host = (np.arange(1000) % 10).astype(dtype)
        total = comm.allreduce(put(host + np.asarray(comm.rank, dtype)))
        expected = np.asarray(comm.size * host + np.asarray(sum(range(comm.size)), dtype), dtype)
        same(total, expected, what=f"sum of {dtype}", kernels=dtype in NARROW)
    for seed in range(3):
        broadcasts(comm, seed, kernels=True)
    late = interrupt(comm)
    report(
        "NCCL on two ranks",
        dtypes=len(SUMMED),
        milliseconds_until_an_interrupt_was_seen=1e3 * late,
    )
    measured("seconds until an interrupt was seen", late, MOST)


def started():
    """Return a communicator on which NCCL has averaged; skip where it does not take two ranks."""
    link, hosts = world().open_link(None, host_identity())
    gpu = Gpu(Apart(), this_gpu().nccl)
    comm = compose(world(), link, hosts, "pure_nccl", gpu=gpu)
    comm.timeout = PATIENCE
    model, _ = model_of(comm.rank, comm.size)
    try:
        comm.multi_node_mean_grad(model)
    except (NcclError, CollectiveTimeoutError) as error:
        raise Skip(f"two ranks on one GPU: {error}") from error
    assert comm._parts.gradients.refusal is None
    return comm


def interrupt(comm) -> float:
    """Interrupt rank 0 while it waits for rank 1 in NCCL; then renew, and be right."""
    late = 0.0
    comm.barrier()
    if comm.rank == 0:
        channel = comm._parts.gradients._direct.carrier._channel
        before, sent = channel.operations, []

        def send() -> None:
            while channel.operations == before:
                time.sleep(2e-3)
            time.sleep(0.1)
            sent.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGINT)

        thread = threading.Thread(target=send, daemon=True)
        thread.start()
        model, _ = model_of(comm.rank, comm.size)
        try:
            comm.multi_node_mean_grad(model)
        except KeyboardInterrupt:
            late = time.monotonic() - sent[0]
        else:
            raise AssertionError("no KeyboardInterrupt")
    else:
        # Agrees that gradients are to be averaged, and comes to NCCL too late.
        model, _ = model_of(comm.rank, comm.size)
        carrier = comm._parts.gradients._direct.carrier
        carrier.add, add = lambda *given: wait_for_the_end(comm), carrier.add
        try:
            comm.multi_node_mean_grad(model)
        except (CommunicatorError, _Over):
            pass
        finally:
            carrier.add = add
    assert world().renew() is True
    averages(comm, seed=8)
    averages(comm, "float16", seed=9)
    broadcasts(comm, 9, kernels=True)
    return late


class _Over(Exception):
    pass


def wait_for_the_end(comm) -> None:
    time.sleep(0.5)
    raise _Over
