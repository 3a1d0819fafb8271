"""Double buffering under interrupts: all ranks go on alike, and averaging under way survives."""

import gc
import os
import random
import signal
import warnings
from contextlib import suppress

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import stress
from least_squares import Delayed, Model, adam, alike, assert_equal, make, step_of
from rank_tools import interrupt_when_waiting, need_ranks, raises

import nbmn
from nbmn.communicators import BrokenCommunicatorError, CommunicatorError, world


def check_interrupt_while_waiting_for_the_means(comm):
    """The notebook's way: a rank fails, the others are interrupted, all are renewed."""
    need_ranks(comm, 2)
    for name in ("flat", "shared_memory"):
        own = nbmn.create_communicator(name)
        optimizer, right = make(own), Delayed(comm.size)
        for step in range(3):
            step_of(comm, optimizer, step)
            right.update(step)
        if comm.rank > 0:
            step_of(comm, optimizer, 3)
            watcher = interrupt_when_waiting("finish_mean_grad")
            with raises(KeyboardInterrupt):
                step_of(comm, optimizer, 4)
            watcher.join()
            with raises(BrokenCommunicatorError, "renew"):
                step_of(comm, optimizer, 4)
        assert world().renew() is True
        assert own.broken is None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for step in range(5, 9):
                step_of(comm, optimizer, step)
            optimizer.flush()
        assert alike(comm, optimizer)
        assert optimizer.t == comm.bcast_obj(optimizer.t)
        # The ranks go on from rank 0, which had come to step 2 and applied 0 and 1.
        right.pending = None
        for step in range(5, 9):
            right.update(step)
        right.flush()
        assert_equal(optimizer, right)


def check_renewal_leaves_averaging_under_way_alone(comm):
    need_ranks(comm, 2)
    # What earlier checks dropped would be renewed, at the moment that a rank happens to collect it.
    gc.collect()
    world().renew()
    optimizer, right = make(comm), Delayed(comm.size)
    for step in range(12):
        step_of(comm, optimizer, step)
        right.update(step)
        if step % 2:
            assert world().renew() is False
        if step % 3 == 0:
            # Something else breaks, and is renewed.
            other = nbmn.create_communicator("flat")
            if comm.rank == 0:
                watcher = interrupt_when_waiting("barrier")
                with raises(KeyboardInterrupt):
                    other.barrier()
                watcher.join()
            assert world().renew() is True
            assert other.allreduce(np.array([1]))[0] == comm.size
    optimizer.flush()
    right.flush()
    assert_equal(optimizer, right)


def check_interrupt_in_the_midst_of_applying(comm):
    """One rank applies half of the parameters: afterwards all have the same values."""
    optimizer = adam(comm)
    plain = make(comm, Model(0), chainer.optimizers.Adam(0.01), double_buffering=False)
    for it in (optimizer, plain):
        step_of(comm, it, 0)
        step_of(comm, it, 1)

        def interrupt(rule, param):
            del rule, param
            os.kill(os.getpid(), signal.SIGINT)

        if comm.rank == comm.size - 1:
            rule = it.target.b.update_rule
            rule.add_hook(interrupt, name="stop")
            with raises(KeyboardInterrupt):
                step_of(comm, it, 2)
            rule.remove_hook("stop")
        else:
            step_of(comm, it, 2)
        world().renew()
        for step in range(3, 6):
            step_of(comm, it, step)
        if it is optimizer:
            it.flush()
        assert alike(comm, it)
        states = [it.target.w.update_rule.state["m"], it.target.b.update_rule.state["v"]]
        for state in states:
            everyone = comm.allgather(state)
            assert all((theirs == everyone[0]).all() for theirs in everyone)
        assert set(comm.allgather_obj((it.t, it.target.b.update_rule.t))) == {
            (it.t, it.target.b.update_rule.t)
        }


def check_interrupts_at_random_moments(comm, rounds=25):
    """However they fall, all ranks go on, together."""
    need_ranks(comm, 2)
    together, alone = random.Random(1), random.Random(2 + comm.rank)
    own = nbmn.create_communicator("shared_memory")
    model = chainer.Sequential(L.Linear(100, 80), L.Linear(80, 2))
    optimizer = make(own, model, chainer.optimizers.Adam())
    x = np.random.RandomState(comm.rank).randn(8, 100).astype("f")
    interrupter, interrupted = stress.Interrupter(), 0
    for number in range(rounds):
        victim = together.randrange(comm.size) == comm.rank
        delay = together.random() * 6e-3 + (0 if victim else 6e-3 + alone.random() * 6e-3)
        with suppress(CommunicatorError):
            try:
                interrupter.after(delay)
                while True:
                    optimizer.update(lambda: F.sum(model(x)))
                    if number % 3 == 0:
                        own.allreduce(x)
            except KeyboardInterrupt:
                interrupted += 1
        interrupter.stop()
        world().renew()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for _ in range(2):
                optimizer.update(lambda: F.sum(model(x)))
        optimizer.flush()
        for param in model.params():
            for array in (param.array, *param.update_rule.state.values()):
                everyone = comm.allgather(array)
                assert all((theirs == everyone[0]).all() for theirs in everyone)
        counts = comm.allgather_obj((optimizer.t, [p.update_rule.t for p in model.params()]))
        assert all(theirs == counts[0] for theirs in counts)
    assert interrupted > rounds / 2
    assert world().abandoned == 0
