"""Copies of multi-node optimizers: deep ones go on by themselves, from where they were made."""

import copy
import pickle
import warnings

import chainer
import numpy as np
from least_squares import BACKENDS, Delayed, Model, X, Y, assert_equal, batch, make, step_of
from rank_tools import need_ranks, raises

import nbmn


def check_deep_copies_go_on_by_themselves(comm):
    for name in BACKENDS:
        own = nbmn.create_communicator(name)
        size = 1 if name == "dummy" else comm.size

        def step_once(optimizer, right, step, size=size):
            rows = batch(step, 0 if size == 1 else comm.rank, size)
            optimizer.update(optimizer.target, X[rows], Y[rows])
            right.update(step)

        optimizer, right = make(own), Delayed(size)
        for step in range(3):
            step_once(optimizer, right, step)
        double, expected = copy.deepcopy(optimizer), copy.deepcopy(right)
        assert double.communicator is own
        assert double.target is not optimizer.target
        assert_equal(double, expected)
        # In turns, and not with the same data.
        for step in range(3):
            step_once(optimizer, right, 3 + step)
            step_once(double, expected, 13 + step)
            assert_equal(optimizer, right)
            assert_equal(double, expected)
        for each in (double, optimizer, expected, right):
            each.flush()
        assert_equal(optimizer, right)
        assert_equal(double, expected)


def check_deep_copies_of_fresh_and_of_flushed_ones(comm):
    for steps in (0, 2):
        optimizer, right = make(comm), Delayed(comm.size)
        for step in range(steps):
            step_of(comm, optimizer, step)
            right.update(step)
        optimizer.flush()
        right.flush()
        double = copy.deepcopy(copy.deepcopy(optimizer))
        step_of(comm, double, 7)
        assert_equal(optimizer, right)
        right.update(7)
        double.flush()
        right.flush()
        assert_equal(double, right)


def check_copying_waits_for_nobodys_copy(comm):
    """Only one rank copies: that is no collective."""
    need_ranks(comm, 2)
    optimizer, right = make(comm), Delayed(comm.size)
    for step in range(4):
        step_of(comm, optimizer, step)
        right.update(step)
        if comm.rank == 1:
            double = copy.deepcopy(optimizer)
            assert_equal(double, right)
            assert double._pending is not optimizer._pending
    optimizer.flush()
    right.flush()
    assert_equal(optimizer, right)


def check_the_mean_of_a_copy_has_memory_of_its_own(comm):
    optimizer = make(comm)
    step_of(comm, optimizer, 0)
    double = copy.deepcopy(optimizer)
    (name, param), *_ = double._pending.params
    assert param is dict(double.target.namedparams())[name]
    assert param is not dict(optimizer.target.namedparams())[name]
    assert all(mean.flags.owndata for mean in double._pending.arrays)
    optimizer.flush()


def check_copies_with_loss_scales_and_hooks(comm):
    optimizer, right = make(comm), Delayed(comm.size, decay=0.1)
    optimizer.add_hook(chainer.optimizer_hooks.WeightDecay(0.1))
    optimizer.set_loss_scale(8.0)
    step_of(comm, optimizer, 0)
    double = copy.deepcopy(optimizer)
    double.set_loss_scale(32.0)
    right.update(0)
    for step in (1, 2):
        step_of(comm, double, step)
        right.update(step)
    double.flush()
    right.flush()
    assert_equal(double, right)
    optimizer.flush()


def check_shallow_copies_share_what_they_wrap(comm):
    optimizer, right = make(comm), Delayed(comm.size)
    step_of(comm, optimizer, 0)
    right.update(0)
    other = copy.copy(optimizer)
    assert other.actual_optimizer is optimizer.actual_optimizer
    assert other.communicator is comm
    other.flush()  # has nothing to apply
    assert other.t == 0
    optimizer.flush()
    right.flush()
    assert_equal(other, right)
    step_of(comm, other, 1)
    other.flush()
    right.update(1)
    right.flush()
    assert_equal(optimizer, right)


def reload(optimizer):
    """Load the state that it has, as from a snapshot."""
    saved = chainer.serializers.DictionarySerializer()
    optimizer.serialize(saved)
    optimizer.serialize(chainer.serializers.NpzDeserializer(saved.target))


def check_shallow_copies_know_that_ranks_are_apart(comm):
    optimizer = make(comm)
    for step in range(2):
        step_of(comm, optimizer, step)
    optimizer.flush()
    rule = optimizer.target.w.update_rule
    before = rule.state["v"].copy()
    if comm.rank == comm.size - 1 and comm.rank:
        rule.state["v"] += 1.0
        reload(optimizer)
    other = copy.copy(optimizer)
    step_of(comm, other, 2)
    other.flush()
    for state in comm.allgather_obj(rule.state["v"]):
        np.testing.assert_array_equal(state, rule.state["v"])
    assert not np.array_equal(rule.state["v"], before)


def check_a_copy_without_a_step_that_was_called_off_says_so(comm):
    optimizer = make(comm)
    for step in range(2):
        step_of(comm, optimizer, step)
    optimizer.flush()
    reload(optimizer)
    step_of(comm, optimizer, 2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        double = copy.deepcopy(optimizer)
    told = [str(each.message) for each in caught if "gradients of one step" in str(each.message)]
    assert len(told) == (comm.rank == 0), told
    for each in (double, optimizer):
        each.flush()
    assert (double.t, optimizer.t) == (2, 3)


def check_updaters_are_copied(comm):
    for double_buffering in (False, True):
        optimizer = make(comm, double_buffering=double_buffering)
        mine = np.arange(12)[comm.rank :: comm.size]
        iterator = chainer.iterators.SerialIterator(
            chainer.datasets.TupleDataset(X[mine], Y[mine]), 2, shuffle=False
        )
        updater = chainer.training.StandardUpdater(iterator, optimizer)
        updater.update()
        double = copy.deepcopy(updater)
        for each in (updater, double):  # from the same place, over the same rows
            each.update()
            each.get_optimizer("main").flush() if double_buffering else None
        assert double.iteration == updater.iteration == 2
        one, other = optimizer.target, double.get_optimizer("main").target
        assert one is not other
        np.testing.assert_array_equal(one.w.array, other.w.array)
        assert not np.array_equal(one.w.array, Model().w.array)


def check_pickling_says_why_not(comm):
    for double_buffering in (False, True):
        model = chainer.links.Classifier(chainer.links.Linear(5, 2))
        optimizer = make(comm, model, double_buffering=double_buffering)
        optimizer.update(model, X.astype(np.float32), np.zeros(12, np.int32))
        with raises(TypeError, "a communicator belongs to its process", "chainer.serializers"):
            pickle.dumps(optimizer)


class Special(chainer.optimizers.SGD):
    """An optimizer that sees to its own copies."""

    def __deepcopy__(self, memo):
        double = Special(self.lr)
        double.setup(copy.deepcopy(self.target, memo))
        return double

    def __setstate__(self, state):
        raise AssertionError("this is not the state of mine")


def check_special_methods_of_what_is_wrapped_are_its_own(comm):
    for double_buffering in (False, True):
        optimizer = make(comm, actual=Special(0.01), double_buffering=double_buffering)
        double = copy.deepcopy(optimizer)
        assert type(double) is type(optimizer)
        assert type(double.actual_optimizer) is Special
        assert double.communicator is comm
        step_of(comm, double, 0)
