import contextlib
import itertools
import os
import threading
import time

import chainer
import numpy as np
from check_optimizer import DATA, LABELS, classifier
from rank_tools import need_ranks, raises

import nbmn
from nbmn.communicators import MismatchError
from nbmn.debug import faults


def met(fault, steps):
    """The steps at which a fault raised on this rank."""
    struck = []
    for step in range(1, steps + 1):
        try:
            fault()
        except RuntimeError:
            struck.append(step)
    return struck


def check_a_fault_strikes_on_its_rank_at_its_step(comm):
    last = comm.size - 1
    assert met(faults.raising(rank=last, at_step=3), 6) == ([3] if comm.rank == last else [])
    with contextlib.nullcontext() if comm.rank else raises(KeyError, "mine"):
        faults.raising(rank=0, error=KeyError("mine"))()


def check_faults_that_could_not_strike_are_errors_on_all_ranks(comm):
    with raises(ValueError, f"no rank {comm.size}"):
        faults.raising(rank=comm.size)
    with raises(ValueError, "counted from 1"):
        faults.killing(rank=0, at_step=0)
    with raises(ValueError, "how must be one of loop, sleep, read, native"):
        faults.hanging(rank=0, how="quietly")
    with raises(TypeError, "skipping strikes in"):
        faults.inject([1, 2], faults.skipping(rank=0))
    with raises(TypeError, "call the fault in the loop"):
        faults.inject(3, faults.raising(rank=0))
    with raises(TypeError, "None is no fault; make one, as in faults.inject(comm, faults.raising"):
        faults.inject(comm, None)
    with raises(TypeError, "the function raising is no fault"):
        faults.inject(comm, faults.raising)
    with raises(ValueError, "no operation 'sum'"):
        faults.inject(comm, faults.raising(rank=0), operation="sum")
    with raises(TypeError, "goes with a communicator"):
        faults.inject([1], faults.raising(rank=0), operation="bcast")


def check_faults_are_what_is_found_in_the_module(comm):
    assert set(dir(faults)) == {
        *("raising", "slowing", "hanging", "killing", "poisoning", "misshaping", "recasting"),
        *("skipping", "uneven", "inject", "Fault"),
    }


def check_slow_steps(comm):
    fault = faults.slowing(rank=0, seconds=0.05, at_step=2)
    took = []
    for _ in range(3):
        began = time.perf_counter()
        fault()
        took.append(time.perf_counter() - began)
    assert [t >= 0.05 for t in took] == [False, comm.rank == 0, comm.rank == 0]


def check_hanging_ends_after_its_time(comm):
    for how in ("loop", "sleep"):
        began = time.perf_counter()
        faults.hanging(rank=0, how=how, seconds=0.05)()
        assert (time.perf_counter() - began >= 0.05) == (comm.rank == 0)


def check_native_code_keeps_other_threads_from_running(comm):
    ticks = []
    stop = threading.Event()

    def tick():
        while not stop.wait(0.002):
            ticks.append(time.perf_counter())

    thread = threading.Thread(target=tick)
    thread.start()
    began = time.perf_counter()
    faults.hanging(rank=0, how="native", seconds=0.4)()
    ended = time.perf_counter()
    stop.set()
    thread.join()
    times = [began, *(t for t in ticks if began < t < ended), ended]
    longest = max(b - a for a, b in itertools.pairwise(times))
    if comm.rank == 0:
        assert longest > 0.1


def check_reading_from_nobody_ends_with_an_interrupt(comm):
    if comm.rank:
        return
    timer = threading.Timer(0.2, os.kill, (os.getpid(), 2))
    timer.start()
    with raises(KeyboardInterrupt):
        faults.hanging(rank=0, how="read")()
    timer.join()


def check_a_communicator_in_which_a_rank_raises(comm):
    faulty = faults.inject(comm, faults.raising(rank=0, at_step=2), operation="allreduce")
    assert faulty.rank == comm.rank
    assert faulty.size == comm.size
    ones = np.ones(3)
    np.testing.assert_array_equal(faulty.allreduce(ones), ones * comm.size)
    faulty.barrier()  # no step
    if comm.rank == 0:
        with raises(RuntimeError, "injected on rank 0 at step 2"):
            faulty.allreduce(ones)
    np.testing.assert_array_equal(comm.allreduce(ones), ones * comm.size)


def check_a_skipped_collective(comm):
    faulty = faults.inject(comm, faults.skipping(rank=0), operation="bcast")
    if comm.rank == 0:
        assert faulty.bcast(np.arange(3.0)).tolist() == [0, 1, 2]  # alone
    np.testing.assert_array_equal(comm.allreduce(np.ones(2)), np.ones(2) * comm.size)


def check_a_nan_reaches_all_ranks(comm):
    last = comm.size - 1
    faulty = faults.inject(comm, faults.poisoning(rank=last), operation="allreduce")
    mine = np.zeros((2, 2))
    total = faulty.allreduce(mine)
    assert np.isnan(total[0, 0])
    assert not np.isnan(total.reshape(-1)[1:]).any()
    assert not np.isnan(mine).any()  # what was passed stays as it was


def check_odd_shapes_and_dtypes_are_mismatches(comm):
    need_ranks(comm, 2)
    for fault in (faults.misshaping(rank=1), faults.recasting(rank=1, dtype="f")):
        faulty = faults.inject(comm, fault, operation="allreduce")
        with raises(MismatchError, "rank 1"):
            faulty.allreduce(np.zeros((2, 3)))


def check_gradients_of_another_shape_or_dtype(comm):
    need_ranks(comm, 2)
    for fault, word in (
        (faults.misshaping(rank=1, at_step=2), "(9, 6)"),
        (faults.recasting(rank=1, dtype="e", at_step=2), "float16"),
    ):
        model = classifier(0)
        faulty = faults.inject(comm, fault, operation="gradients")
        optimizer = nbmn.create_multi_node_optimizer(chainer.optimizers.SGD(0.1), faulty)
        optimizer.setup(model)
        optimizer.update(model, DATA, LABELS)
        with raises(MismatchError, "rank 1", "/predictor/0/W", word):
            optimizer.update(model, DATA, LABELS)


def check_a_nan_in_the_gradients(comm):
    model = classifier(0)
    faulty = faults.inject(comm, faults.poisoning(rank=0, at_step=2), operation="gradients")
    optimizer = nbmn.create_multi_node_optimizer(chainer.optimizers.SGD(0.1), faulty).setup(model)
    for step in (1, 2):
        optimizer.update(model, DATA, LABELS)
        found = [np.isnan(param.array).sum() for param in model.params()]
        assert sum(found) == (1 if step == 2 else 0)  # on all ranks


def check_an_optimizer_whose_update_is_skipped(comm):
    model = classifier(0)
    fault = faults.skipping(rank=0, at_step=2)
    plain = chainer.optimizers.SGD(0.1)
    optimizer = faults.inject(plain, fault).setup(model)
    assert isinstance(optimizer.lr, float)
    optimizer.lr = 0.2
    assert plain.lr == 0.2
    for _ in range(3):
        optimizer.update(model, DATA, LABELS)
    assert plain.t == (2 if comm.rank == 0 else 3)


def check_data_with_faults(comm):
    data = chainer.datasets.TupleDataset(np.zeros((6, 2), "f"), np.zeros(6, "i"))
    last = comm.size - 1
    shorter = faults.uneven(data, rank=last, fewer=2)
    assert len(shorter) == (4 if comm.rank == last else 6)
    if comm.rank != last:
        assert shorter is data
    with raises(ValueError, "must not be negative"):
        faults.uneven(data, rank=0, fewer=-1)
    faulty = faults.inject(data, faults.poisoning(rank=0, at_step=3))
    assert len(faulty) == 6
    holes = [i for i in range(6) if np.isnan(faulty[i][0]).any()]
    assert holes == ([2] if comm.rank == 0 else [])
    iterator = chainer.iterators.SerialIterator(data, 2, shuffle=False)
    batches = faults.inject(iterator, faults.raising(rank=0, at_step=2))
    batches.next()
    if comm.rank == 0:
        with raises(RuntimeError, "injected"):
            batches.next()
    else:
        batches.next()
    assert batches.current_position == 4


def check_a_trainer_with_a_fault_in_its_iterator(comm):
    data = chainer.datasets.TupleDataset(DATA, LABELS)
    iterator = faults.inject(
        chainer.iterators.SerialIterator(data, 3, shuffle=False),
        faults.misshaping(rank=0, at_step=2),
    )
    model = classifier(0)
    optimizer = chainer.optimizers.SGD(0.1).setup(model)
    updater = chainer.training.StandardUpdater(iterator, optimizer)
    updater.update()
    if comm.rank == 0:
        with raises(ValueError, ""):
            updater.update()
    else:
        updater.update()
