"""What extensions compute by themselves."""

import random
import sys
from types import SimpleNamespace

import chainer
import numpy as np
import pytest

from nbmn.communicators.errors import MismatchError
from nbmn.extensions import state
from nbmn.extensions.aggregator import mean
from nbmn.extensions.generic_evaluator import by_rounds
from nbmn.extensions.persistent import Kept, agreed
from nbmn.extensions.replica_sets import parse_replica_sets


@pytest.mark.parametrize(
    ("given", "size", "sets"),
    [
        ([0], 4, ((0,), (1, 2, 3))),
        ([0, 1], 4, ((0,), (1,), (2, 3))),
        ([[0, 1], [2, 3]], 4, ((0, 1), (2, 3))),
        ([], 4, ((0, 1, 2, 3),)),
        ([range(0, 8, 2)], 8, ((0, 2, 4, 6), (1, 3, 5, 7))),
        ([{2, 0}, np.int64(1)], 3, ((0, 2), (1,))),
        (iter([iter([1, 0])]), 2, ((0, 1),)),
        ([0], 1, ((0,),)),
    ],
)
def test_replica_sets(given, size, sets):
    assert parse_replica_sets(given, size) == sets


@pytest.mark.parametrize("given", [[4], [-1], [0, [0, 1]], [[]]])
def test_replica_sets_that_cannot_be(given):
    with pytest.raises(ValueError, match="replica set"):
        parse_replica_sets(given, 4)


@pytest.mark.parametrize("given", [[None], ["01"], [0.5]])
def test_replica_sets_of_other_things(given):
    with pytest.raises(TypeError):
        parse_replica_sets(given, 4)


def test_results_by_rounds():
    assert by_rounds([[1, 2, 3], [], [None, 20]]) == [1, None, 2, 20, 3]


def test_mean_is_rounded_once():
    halves = [np.float16(1), np.float16(2**-11), np.float16(2**-11)]  # each is lost in a sum
    assert mean([halves, []]) == np.float16((1 + 2**-10) / 3)
    assert mean([[], []]) is None
    assert mean([[2, 3]]) == 2.5
    assert mean([[np.float32(1)], [2.0]]).dtype == np.float64
    variable = mean([[chainer.Variable(np.ones(2, np.float32))], [np.float32(2)]])
    np.testing.assert_array_equal(variable.array, np.full(2, 1.5, np.float32))


def test_persistents_agreed_on():
    here, gone = Kept((3,), "<f4"), None
    assert agreed([{"a": here, "n": gone}, {"a": gone, "n": gone}]) == {"a": (here, 1)}
    with pytest.raises(MismatchError, match=r"\(2,\), <f4 on rank 1"):
        agreed([{"a": here}, {"a": Kept((2,), "<f4")}])
    with pytest.raises(MismatchError, match=r"ranks 0 and 2 .* b"):
        agreed([{"a": here}, {"a": here}, {"a": here, "b": here}])


def trainer_with(iterator):
    return SimpleNamespace(updater=SimpleNamespace(_iterators={"main": iterator}))


def draws(generator):
    return random.random(), np.random.rand(), np.random.randn(), generator.random()


@pytest.mark.parametrize(
    "generator",
    [
        np.random.RandomState(1),
        np.random.RandomState(np.random.Philox(1)),
        np.random.default_rng(1),
        np.random.Generator(np.random.SFC64(1)),
    ],
)
def test_random_numbers_go_on(generator):
    sampler = chainer.iterators.ShuffleOrderSampler(generator)
    iterator = chainer.iterators.SerialIterator([1, 2, 3], 1, shuffle=None, order_sampler=sampler)
    trainer = trainer_with(iterator)
    np.random.randn()  # keeps a second value back
    random.gauss(0, 1)
    text = state.capture_random(trainer)
    assert text.dtype.kind == "U"  # no pickle
    expected = draws(generator)
    assert draws(generator) != expected
    state.restore_random(trainer, text)
    assert draws(generator) == expected
    state.restore_random(object(), text)  # nothing that iterates


def test_cupy_is_seeded_anew(monkeypatch):
    class Random:
        generator = np.random.RandomState(7)

        def randint(self, low, high):
            return np.asarray(self.generator.randint(low, high))

        def seed(self, number):
            self.generator = np.random.RandomState(number)

    cupy = SimpleNamespace(random=Random(), cuda=SimpleNamespace(is_available=lambda: True))
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    text = state.capture_random(None)
    going_on = cupy.random.generator.rand(3)
    cupy.random.seed(99)
    state.restore_random(None, text)
    np.testing.assert_array_equal(cupy.random.generator.rand(3), going_on)
    monkeypatch.setattr(cupy.cuda, "is_available", lambda: False)
    assert '"cupy": null' in str(state.capture_random(None))


@pytest.mark.parametrize("shuffle", [True, False])
def test_iterators_fit_another_number_of_examples(shuffle):
    def make(n):
        iterator = chainer.iterators.SerialIterator(list(range(n)), 4, shuffle=shuffle)
        return iterator, trainer_with(iterator)

    iterator, trainer = make(12)
    for _ in range(5):
        iterator.next()
    saved = state.capture_own(trainer)
    other, others = make(7)
    fresh = state.capture_own(others)
    fitted = state.fit_iterators(saved, fresh)
    key = "updater/iterator:main/"
    assert int(fitted[f"{key}current_position"]) == 8 * 7 // 12
    assert int(fitted[f"{key}epoch"]) == 1
    if shuffle:
        np.testing.assert_array_equal(fitted[f"{key}order"], fresh[f"{key}order"])
    load = chainer.serializers.NpzDeserializer(fitted, path=key)
    other.serialize(load)
    assert len(other.next()) == 4
    assert other.epoch == 2  # 4 + 4 of 7
    same = state.fit_iterators(saved, saved)
    assert same.keys() == saved.keys()
    assert all(same[name] is saved[name] for name in saved)
