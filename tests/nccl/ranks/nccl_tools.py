"""What the checks of NCCL need: communicators on the stand-in, models, and their means."""

import functools
import os
import signal
import threading
import time
from contextlib import contextmanager

import chainer
import numpy as np
from host_runtime import Standin, gpu, on_device
from rank_tools import raises

from nbmn.communicators import BrokenCommunicatorError, world
from nbmn.communicators.communicator import compose
from nbmn.communicators.topology import host_identity


@functools.cache
def standin():
    driver()  # which loads it
    return Standin()


@functools.cache
def driver():
    if os.environ["NBMN_NCCL_DRIVER"] == "nccl4py":
        from nbmn.gpu.nccl_nvidia import NvidiaNccl

        nccl = NvidiaNccl()
    else:
        from nbmn.gpu.nccl_cupy import CupyNccl

        nccl = CupyNccl()
    assert nccl.problem() is None, nccl.problem()
    return nccl


def on_gpus(name="pure_nccl", timeout=15.0, nccl=None, **options):
    """Return a communicator of all ranks, each with a device of its own."""
    link, hosts = world().open_link(None, host_identity())
    made = compose(world(), link, hosts, name, gpu=gpu(standin(), nccl or driver(), **options))
    made.timeout = timeout
    return made


def counted():
    """Return how many communicators of NCCL this process made, aborted and destroyed."""
    library = standin()
    return library.inits(), library.aborts(), library.destroys()


@contextmanager
def faults():
    """Return the stand-in; without faults afterwards."""
    try:
        yield standin()
    finally:
        standin().reset()


def model_on_device(comm, dtype=np.float32, seed=0, missing=None, shapes=((3, 5), (7,), ())):
    """Return a model with gradients on the device, and what their means are in float64.

    ``missing(rank, number)`` says which gradients a rank has not.
    """
    model = chainer.Link()
    by_rank = [[] for _ in range(comm.size)]
    with model.init_scope():
        for number, shape in enumerate(shapes):
            param = chainer.Parameter(on_device(np.zeros(shape), dtype))
            setattr(model, f"p{number}", param)
            for rank in range(comm.size):
                rng = np.random.default_rng([seed, rank, number])
                grad = np.asarray(rng.normal(size=shape)).astype(dtype)
                absent = missing is not None and missing(rank, number)
                by_rank[rank].append(None if absent else grad)
                if rank == comm.rank and not absent:
                    param.grad = on_device(grad)
    wide = np.result_type(dtype, np.float64)
    means = [
        None
        if all(grad is None for grad in grads)
        else sum(0.0 if g is None else g.astype(wide) for g in grads) / comm.size
        for grads in zip(*by_rank, strict=True)
    ]
    return model, means


def params(model):
    return [getattr(model, f"p{number}") for number in range(len(list(model.params())))]


def assert_means(model, means, rtol=1e-6):
    for param, mean in zip(params(model), means, strict=True):
        if mean is None:
            assert param.grad is None
            continue
        assert param.grad.shape == param.shape
        assert param.grad.dtype == param.dtype
        np.testing.assert_allclose(np.asarray(param.grad, np.float64), mean, rtol=rtol, atol=rtol)


def started(**options):
    """Return a communicator on which NCCL has started."""
    nccl = on_gpus(**options)
    assert_right(nccl)
    return nccl


def assert_right(nccl, seed=0):
    model, means = model_on_device(nccl, "float32", seed)
    nccl.multi_node_mean_grad(model)
    assert_means(model, means)


def assert_renewed(nccl):
    assert nccl.broken
    with raises(BrokenCommunicatorError, f"rank {nccl.rank}", "renew"):
        nccl.barrier()
    assert world().renew() is True
    for seed in (1, 2):
        assert_right(nccl, seed)


def nccl_of(comm):
    return comm._parts.gradients._direct.carrier


def interrupt_in_nccl(comm, seen=None, number=signal.SIGINT):
    """Send this process a signal when it has enqueued something and waits for that."""
    channel = nccl_of(comm)._channel
    before = channel.operations

    def watch():
        give_up = time.monotonic() + 10
        while time.monotonic() < give_up:
            if channel.operations > before:
                time.sleep(0.05)  # by then it is in the wait, rather than on the way there
                if seen is not None:
                    seen.append(time.monotonic())
                os.kill(os.getpid(), number)
                return
            time.sleep(0.002)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return thread
