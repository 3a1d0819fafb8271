"""What goes wrong in NCCL, or around it, ends at once, is said, and heals."""

import gc
import signal
import threading
import time
import weakref

import chainer
import numpy as np
from host_runtime import on_device
from nccl_tools import (
    assert_means,
    counted,
    faults,
    interrupt_in_nccl,
    model_on_device,
    nccl_of,
    on_gpus,
    standin,
)
from rank_tools import interrupt_when_waiting, raises
from stress import Interrupter

import nbmn
from nbmn.communicators import BrokenCommunicatorError, CollectiveTimeoutError, peers, world
from nbmn.communicators.background import Worker
from nbmn.communicators.errors import CommunicatorError, NcclError, RemoteRankError
from nbmn.communicators.waiting import wait
from nbmn.gpu import nccl_channel

peers.TRANSFER = 0.5  # here all is small

AT_ONCE = 0.2
"""Seconds; 0.05 is what is wanted, where the machine has a core for each rank."""


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


def check_interrupt_of_a_stuck_all_reduce(comm):
    """One rank's NCCL hangs in a call, so that the others' kernels wait for it."""
    nccl = started()
    inits, aborts, destroys = counted()
    with faults() as fault:
        fault.block(nccl.rank == nccl.size - 1)
        model, _ = model_on_device(nccl)
        seen = []
        watcher = interrupt_in_nccl(nccl, seen)
        with raises(KeyboardInterrupt):
            nccl.multi_node_mean_grad(model)
        took = time.monotonic() - seen[0]
        watcher.join()
        assert took < AT_ONCE, took
        assert "interrupted" in nccl.broken
        fault.block(0)
        wait(lambda: counted()[1] == aborts + 1, 5.0, "the abort")
    assert_renewed(nccl)
    assert counted() == (inits + 1, aborts + 1, destroys)


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


def check_interrupt_behind_a_long_kernel(comm):
    nccl = started()
    runtime = nccl._parts.gpu.runtime
    begin = time.monotonic()
    if nccl.rank == 0:
        standin().kernel(runtime.compute_stream(), 2000)
    model, _ = model_on_device(nccl)
    seen = []
    watcher = interrupt_in_nccl(nccl, seen)
    with raises(KeyboardInterrupt):
        nccl.multi_node_mean_grad(model)
    assert time.monotonic() - seen[0] < AT_ONCE
    watcher.join()
    assert time.monotonic() - begin < 1.5
    assert_renewed(nccl)
    assert time.monotonic() - begin > 2.0 or nccl.rank != 0


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
        with raises(NcclError, "did not start", "rank 0: it waited 1 s", "rank 1: it waited 1 s"):
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


def check_interrupt_of_the_start(comm):
    nccl = on_gpus()
    with faults() as fault:
        fault.never_arrive(nccl.rank == 1)
        model, _ = model_on_device(nccl)
        seen = []
        watcher = interrupt_when_waiting("multi_node_mean_grad", seen)
        with raises(KeyboardInterrupt):
            nccl.multi_node_mean_grad(model)
        assert time.monotonic() - seen[0][1] < AT_ONCE
        watcher.join()
    assert_renewed(nccl)


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


def check_one_interrupted_rank_is_missed_by_the_others(comm):
    nccl = started()
    aborts = standin().aborts()
    with faults() as fault:
        fault.block(nccl.rank == 0)
        model, _ = model_on_device(nccl)
        if nccl.rank == 0:
            watcher = interrupt_in_nccl(nccl)
            with raises(KeyboardInterrupt):
                nccl.multi_node_mean_grad(model)
            watcher.join()
            # Otherwise the call could go on, and be the others' in time.
            wait(lambda: standin().aborts() == aborts + 1, 5.0, "the abort")
        else:
            with raises(BrokenCommunicatorError, "rank 0 has left multi_node_mean_grad #"):
                nccl.multi_node_mean_grad(model)
    assert_renewed(nccl)


def check_what_is_whole_survives_a_renewal(comm):
    """An interrupt of something else costs no new start of NCCL."""
    nccl = started()
    before = counted()
    name = nccl_of(nccl)._channel.unique_id
    if nccl.rank == 0:
        watcher = interrupt_when_waiting("barrier")
        with raises(KeyboardInterrupt):
            nccl.barrier()
        watcher.join()
    assert world().renew() is True
    assert_right(nccl, 1)
    assert counted() == before
    assert nccl_of(nccl)._channel.unique_id == name


def check_slow_abort_keeps_nobody_waiting(comm):
    nccl = started()
    with faults() as fault:
        fault.slow_abort(1500)
        fault.block(nccl.rank == 0)
        model, _ = model_on_device(nccl)
        begin = time.monotonic()
        watcher = interrupt_in_nccl(nccl)
        with raises(KeyboardInterrupt):
            nccl.multi_node_mean_grad(model)
        watcher.join()
        fault.block(0)
        assert_renewed(nccl)
        assert time.monotonic() - begin < 1.4
        aborts = standin().aborts()
        time.sleep(0)
        assert aborts >= 1


def check_dropped_communicators_are_destroyed(comm):
    nccl = started()
    gc.collect()  # what earlier checks dropped may end at any moment
    _, aborts, destroys = counted()
    del nccl
    gc.collect()
    wait(lambda: counted()[2] > destroys, 5.0, "the end")
    assert counted()[1] == aborts


def check_what_an_abort_leaves_on_the_device_is_kept(comm):
    """Until the stream is past it, though the abort has returned."""
    nccl = started()
    runtime, channel = nccl._parts.gpu.runtime, nccl_of(nccl)._channel
    kept = on_device(np.ones(3))
    seen = weakref.ref(kept)
    standin().kernel(channel._stream, 300)
    behind = runtime.record(channel._stream)
    task = channel.abort([kept])
    del kept
    held = []
    while not runtime.reached(behind):
        held.append(seen() is not None)
    assert held[:-1], "the abort took longer than the kernel"
    assert all(held[:-1])
    wait(task.done, 5.0, "the abort")
    gc.collect()
    assert seen() is None


def check_no_abort_while_a_call_is_under_way(comm):
    """For a moment, here a longer one: what it frees the call may yet use."""
    before, nccl_channel.GRACE = nccl_channel.GRACE, 5.0
    nccl = started()
    channel = nccl_of(nccl)._channel
    _, aborts, _ = counted()
    entered, go_on, seen = threading.Event(), threading.Event(), []

    def calls(made, stream):
        entered.set()
        go_on.wait(0.05)
        seen.append(counted()[1])

    ready = channel._gpu.runtime.record(channel._gpu.runtime.compute_stream())
    channel.enqueue(ready, calls, to_the_end=False)
    entered.wait(5.0)
    task = channel.abort()
    wait(task.done, 5.0, "the abort")
    assert (seen, counted()[1]) == ([aborts], aborts + 1)
    late = channel.enqueue(ready, calls, to_the_end=False)
    assert not late.done()  # its thread has ended
    nccl_channel.GRACE = before


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
    assert standin().operations() == operations + 8


def check_interrupt_of_double_buffering(comm):
    nccl = started()
    model, _ = model_on_device(nccl, "float32", shapes=((4, 3),))
    optimizer = nbmn.create_multi_node_optimizer(
        chainer.optimizers.SGD(0.1), nccl, double_buffering=True
    )
    optimizer.setup(model)

    def update():
        model.p0.grad = on_device(np.full((4, 3), 1 + nccl.rank), "float32")
        optimizer.update()

    update()
    aborts = standin().aborts()
    with faults() as fault:
        fault.block(nccl.rank == 0)
        seen = []
        watcher = interrupt_when_waiting("finish_mean_grad", seen)
        with raises(KeyboardInterrupt):
            update()
            update()
        assert time.monotonic() - seen[0][1] < AT_ONCE
        watcher.join()
        wait(lambda: standin().aborts() == aborts + 1, 5.0, "the abort")
    assert world().renew() is True
    before = np.array(model.p0.array)
    update()
    update()
    optimizer.flush()
    mean = 1 + (nccl.size - 1) / 2
    np.testing.assert_allclose(np.asarray(model.p0.array), before - 0.1 * 2 * mean, rtol=1e-5)


def check_random_interrupts(comm):
    nccl = started()
    interrupter = Interrupter()
    rng = np.random.default_rng(3 + comm.rank)
    ticket = 10**6
    interrupted = 0
    for number in range(25):
        try:
            interrupter.after(rng.random() * 0.02)
            for seed in range(1000):
                assert_right(nccl, seed % 5)
        except KeyboardInterrupt:
            interrupted += 1
        except CommunicatorError:
            pass
        interrupter.stop()
        world().renew(ticket + number)
        assert_right(nccl, number)
    assert interrupted > 15
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
