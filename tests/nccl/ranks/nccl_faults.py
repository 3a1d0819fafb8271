"""What goes wrong in NCCL, or around it, ends at once, is said, and heals."""

import threading
import time

import chainer
import numpy as np
from host_runtime import on_device
from nccl_tools import (
    assert_means,
    assert_renewed,
    assert_right,
    counted,
    faults,
    model_on_device,
    on_gpus,
    standin,
    started,
)
from rank_tools import raises

import nbmn
from nbmn.communicators import BrokenCommunicatorError, CollectiveTimeoutError, peers, world
from nbmn.communicators.background import Worker
from nbmn.communicators.errors import NcclError, RemoteRankError

peers.TRANSFER = 0.5  # here all is small


def check_the_end_is_noticed_when_it_comes(comm):
    """However long it took: the device is idle until then."""
    for options, name in (({}, "NCCL"), ({"uuid": "the only one"}, "staged")):
        nccl = started(**options)
        runtime = nccl._parts.gpu.runtime
        ends, late = [], []
        sleep = runtime.await_

        def noted(event, sleep=sleep, ends=ends):
            sleep(event)
            ends.append(time.monotonic())

        runtime.await_ = noted
        for seed in range(7):
            model, _ = model_on_device(nccl, "float32", seed)
            standin().kernel(runtime.compute_stream(), 100)
            nccl.multi_node_mean_grad(model)
            if ends:  # some of the staged waits for events that are reached already
                late.append(time.monotonic() - ends[-1])
        assert len(ends) >= 7, name
        assert name == "staged" or sorted(late)[3] < 2e-3, late


def check_async_error_breaks_and_heals(comm):
    nccl = started()
    inits, aborts, destroys = counted()
    with faults() as fault:
        model, _ = model_on_device(nccl)
        if nccl.rank == 1:
            fault.fail(0, 6)
            with raises(NcclError, "rank 1", "remote process exited"):
                nccl.multi_node_mean_grad(model)
        else:
            begin = time.monotonic()
            with raises(BrokenCommunicatorError, "rank 1 has left multi_node_mean_grad #"):
                nccl.multi_node_mean_grad(model)
            assert time.monotonic() - begin < 10
    assert "failed" in nccl.broken
    assert_renewed(nccl)
    assert counted() == (inits + 1, aborts + 1, destroys)


def check_error_after_some_operations(comm):
    nccl = started()
    with faults() as fault:
        fault.fail(3, 2)
        for seed in range(3):
            assert_right(nccl, seed)
        with raises(NcclError, f"rank {nccl.rank}", "system error"):
            nccl.allreduce(on_device(np.ones(5)))
    assert_renewed(nccl)


def check_operations_in_progress(comm):
    """Status 7, of which CuPy makes a KeyError."""
    nccl = started()
    with faults() as fault:
        fault.in_progress(40, 2)
        assert_right(nccl, 1)
        assert_right(nccl, 2)
    inits, _, _ = counted()
    with faults() as fault:
        fault.in_progress(40, 0)
        started()
    assert counted()[0] == inits + 1


def check_errors_of_the_device(comm):
    nccl = started()
    runtime = nccl._parts.gpu.runtime
    runtime.error = RuntimeError("an illegal memory access was encountered")
    model, _ = model_on_device(nccl)
    with raises(RuntimeError, "illegal memory access"):
        nccl.multi_node_mean_grad(model)
    runtime.error = None
    assert_renewed(nccl)


class Full:
    """In place of ``runtime.empty`` on rank 1, fails the ``number``th time."""

    def __init__(self, nccl, number=1):
        self._runtime = nccl._parts.gpu.runtime
        self._empty = self._runtime.empty
        self._left = number if nccl.rank == 1 else 0
        self._runtime.empty = self

    def __call__(self, size, dtype):
        self._left -= 1
        if self._left == 0:
            raise FullError("out of memory")
        return self._empty(size, dtype)

    def end(self):
        self._runtime.empty = self._empty


class FullError(Exception):
    """As CuPy's errors are, none of Python's own."""


def check_all_are_told_that_one_cannot_prepare(comm):
    some = {"missing": lambda rank, number: rank == number}
    for number, options, missing in (
        (1, {}, {}),  # before they vote
        (2, {}, some),  # when they know what the others have
        (2, {"uuid": "the only one"}, {}),  # when they know which way it goes
    ):
        nccl = on_gpus(**options)
        full = Full(nccl, number)
        model, means = model_on_device(nccl, **missing)
        with raises(RemoteRankError, "multi_node_mean_grad: on rank 1: FullError: out of memory"):
            nccl.multi_node_mean_grad(model)
        full.end()
        assert nccl.broken is None
        nccl.multi_node_mean_grad(model)
        assert_means(model, means)
    nccl = started()
    full = Full(nccl)
    with raises(RemoteRankError, "allreduce: on rank 1: FullError: out of memory"):
        nccl.allreduce(on_device(np.ones(5)))
    full.end()
    assert nccl.broken is None
    assert_right(nccl)


def check_who_fails_after_the_sum_has_broken_it(comm):
    nccl = started()
    if nccl.rank == 1:
        direct = nccl._parts.gradients._direct

        def broken(packed):
            raise FullError("out of memory")

        direct._results = broken
        with raises(FullError, "out of memory"):
            assert_right(nccl)
        del direct._results
        assert "FullError" in nccl.broken
    else:
        assert_right(nccl)
    comm.barrier()
    assert world().renew() is True
    assert_right(nccl)


def check_sums_come_after_means_in_the_background(comm):
    nccl = started()
    for do in (lambda: nccl.allreduce(on_device(np.ones(5))), lambda: assert_right(nccl)):
        worker, seen = Worker(nccl._link.uid), []

        def job(seen=seen):
            threading.Event().wait(0.2)
            seen.append(True)

        worker.start(job)
        do()
        assert seen


def check_start_has_a_deadline(comm):
    nccl = on_gpus(timeout=1.0)
    with faults() as fault:
        fault.never_arrive(nccl.rank == 1)
        model, _ = model_on_device(nccl)
        # The first whose patience ends ends that of the others.
        waited = ["it waited 1 s for the other ranks", "rank 0: it waited", "rank 1: it waited"]
        with raises(NcclError, "did not start", *waited):
            nccl.multi_node_mean_grad(model)
    assert nccl.broken is None
    nccl.barrier()
    assert_right(nccl)


def check_start_that_fails_on_one_rank(comm):
    """The other ranks hear of it, and do not wait for the end of their own patience."""
    nccl = on_gpus(timeout=600.0)
    with faults() as fault:
        if nccl.rank == 1:
            fault.refuse(2)
        model, _ = model_on_device(nccl)
        others = "rank 0: it waited for the other ranks"
        with raises(NcclError, "did not start", "rank 1: NCCL: ", "system error", others):
            nccl.multi_node_mean_grad(model)
    assert nccl.broken is None
    assert_right(nccl)


def check_rank_that_does_not_come_is_named(comm):
    nccl = started()
    nccl.timeout = 0.5
    if nccl.rank == 0:
        model, _ = model_on_device(nccl)
        texts = ["rank 0 waited 0.5 s", "not come to multi_node_mean_grad #", "rank"]
        with raises(CollectiveTimeoutError, *texts):
            nccl.multi_node_mean_grad(model)
    comm.barrier()
    nccl.timeout = 15.0
    assert world().renew() is True
    assert_right(nccl, 1)


def check_timeout_in_nccl_names_who_is_late(comm):
    nccl = started()
    nccl.timeout = 0.7
    with faults() as fault:
        fault.block(nccl.rank == 1)
        model, _ = model_on_device(nccl)
        with raises(CollectiveTimeoutError, f"rank {nccl.rank} waited 0.7 s"):
            nccl.multi_node_mean_grad(model)
    nccl.timeout = 15.0
    assert_renewed(nccl)


def check_double_buffering(comm):
    """In the background, over NCCL, with gradients that stay on the device."""
    nccl = started()
    operations = standin().operations()
    results = []
    for double in (False, True):
        model, _ = model_on_device(nccl, "float32", shapes=((4, 3),))
        optimizer = nbmn.create_multi_node_optimizer(
            chainer.optimizers.SGD(0.1), nccl, double_buffering=double
        )
        optimizer.setup(model)
        for step in range(4):
            model.p0.grad = on_device(np.full((4, 3), step + nccl.rank), "float32")
            optimizer.update()
        if double:
            optimizer.flush()
        results.append(np.asarray(model.p0.array))
    expected = -0.1 * (6 + 4 * (nccl.size - 1) / 2)
    for result in results:
        np.testing.assert_allclose(result, np.full((4, 3), expected), rtol=1e-5)
    # Of values at setup and before the first step, then of gradients; twice.
    assert standin().operations() == operations + 2 * (2 + 4)
