"""Models, optimizers, datasets and iterators, compared over ranks."""

from __future__ import annotations

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
from comparing import compared, told

from nbmn.debug.expected import PARTS, STATISTICS
from nbmn.debug.fingerprint import fingerprint


def model(seed=0, ratio=0.9):
    normal = chainer.initializers.Normal(1.0, rng=np.random.RandomState(seed))
    return L.Classifier(
        chainer.Sequential(
            L.Linear(2, 3, initialW=normal), F.relu, L.BatchNormalization(3, decay=ratio)
        )
    )


def test_links_by_the_paths_of_parameters_and_persistents():
    one, other = model(), model(seed=1, ratio=0.5)
    other.predictor[2].avg_mean[1] = 4
    words = told(one, one, other)
    assert set(words) == {
        "/predictor/0/W",
        "/predictor/1/avg_mean",
        "/predictor/1.decay",
    }
    assert words["/predictor/1.decay"] == [((2,), "0.5, not 0.9", (0, 1))]
    gap = np.abs(one.predictor[0].W.array - other.predictor[0].W.array)
    assert f"at most by {gap.max():.3g}" in words["/predictor/0/W"][0][1]
    lazy = chainer.Sequential(L.Linear(3))
    assert told(chainer.Sequential(L.Linear(2, 3)), lazy)["/0/W"][0][1].startswith(
        "Parameter not initialized, not float32 (3, 2)"
    )


def test_what_a_forward_pass_leaves_in_a_link_is_no_difference():
    one, other = model(), model()
    other(np.zeros((2, 2), "f"), np.zeros(2, "i"))
    other.predictor[2].copyparams(one.predictor[2])
    assert told(one, other) == {}


def test_optimizers_by_hyperparameters_hooks_and_states():
    def made(alpha, decay, own, steps):
        net = model()
        optimizer = chainer.optimizers.Adam(alpha).setup(net)
        optimizer.add_hook(chainer.optimizer_hooks.WeightDecay(decay))
        net.predictor[0].b.update_rule.hyperparam.beta1 = own
        for _ in range(steps):
            optimizer.update(net, np.ones((2, 2), "f"), np.zeros(2, "i"))
        return optimizer

    assert told(made(0.1, 0.2, 0.3, 1), made(0.1, 0.2, 0.3, 1)) == {}
    words = told(made(0.1, 0.2, 0.3, 0), made(0.5, 0.25, 0.4, 0))
    assert words[".alpha"][0][1] == "0.5, not 0.1"
    assert words[".hooks['WeightDecay'].rate"][0][1] == "0.25, not 0.2"
    assert words["/predictor/0/b.beta1"][0][1] == "0.4, not 0.3"
    words = told(made(0.1, 0.2, 0.3, 1), made(0.1, 0.2, 0.3, 2))
    assert words[".t"][0][1] == "2, not 1"
    assert "/predictor/0/W.m" in words
    assert ".alpha" not in words


def test_datasets_are_not_read():
    class Images(chainer.dataset.DatasetMixin):
        def __init__(self, paths):
            self.paths = paths

        def __len__(self):
            return len(self.paths)

        def get_example(self, i):
            raise AssertionError("read")

    words = told(Images(["a", "b"]), Images(["a"]))
    assert words[""][0][1] == "Images of 1, not Images of 2"
    assert words[".paths[1]"][0][1] == "is missing"


def test_iterators_and_trainers():
    def made(steps):
        x = np.random.RandomState(0).rand(6, 2).astype("f")
        data = chainer.datasets.TupleDataset(x, np.zeros(6, "i"))
        iterator = chainer.iterators.SerialIterator(data, 2, shuffle=False)
        optimizer = chainer.optimizers.SGD().setup(model())
        updater = chainer.training.StandardUpdater(iterator, optimizer)
        for _ in range(steps):
            updater.update()
        return chainer.training.Trainer(updater, (9, "iteration"))

    assert told(made(1), made(1)) == {}
    words = told(made(1), made(2))
    assert words[".iteration"][0][1] == "2, not 1"
    assert words[".get_iterator('main').current_position"][0][1] == "4, not 2"
    assert words[".get_optimizer('main').t"][0][1] == "2, not 1"
    assert ".model('main')/predictor/0/W" in words


def test_iterators_keep_what_they_have_read_ahead():
    read = []

    class Counted(chainer.dataset.DatasetMixin):
        def __len__(self):
            return 9

        def get_example(self, i):
            read.append(i)
            return i

    iterator = chainer.iterators.MultithreadIterator(Counted(), 3, shuffle=False, n_threads=1)
    iterator.next()
    found = fingerprint(iterator)
    assert found.leaves[".current_position"].text == "3"
    assert [iterator.next(), iterator.next()] == [[3, 4, 5], [6, 7, 8]]
    iterator.finalize()
    assert sorted(set(read)) == sorted(read[:9])  # nothing was read anew


def test_iterators_that_shuffle_by_other_seeds():
    def made(seed):
        sampler = chainer.iterators.ShuffleOrderSampler(np.random.RandomState(seed))
        return chainer.iterators.SerialIterator([1, 2, 3, 4, 5], 2, order_sampler=sampler)

    assert told(made(1), made(1)) == {}
    words = told(made(1), made(2))
    assert ".order_sampler._random" in words
    assert ".order" in words


def _normalized(kind):
    model = chainer.Sequential(kind(2))
    return lambda value: _with_statistics(model.copy("copy"), value)


def _with_statistics(model, value):
    model[0].avg_mean[...] = value
    return model


def test_what_may_well_differ_is_said_to():
    make = _normalized(L.BatchNormalization)
    (difference,) = compared(make(0), make(1)).differences
    assert (difference.path, difference.expected) == ("/0/avg_mean", STATISTICS)
    gammas = [chainer.Sequential(L.BatchNormalization(2)) for _ in range(2)]
    gammas[1][0].gamma.array[0] = 5
    assert [d.expected for d in compared(*gammas).differences] == [""]

    class MultiNodeBatchNormalization(L.BatchNormalization):
        """As the one of nbmn, the statistics of which are alike."""

    make = _normalized(MultiNodeBatchNormalization)
    assert [d.expected for d in compared(make(0), make(1)).differences] == [""]

    parts = [chainer.datasets.SubDataset([1, 2, 3, 4], i, i + 2) for i in range(2)]
    for make in (lambda x: x, lambda x: {"a": 1, "train": x}):
        found = compared(*map(make, parts)).differences
        assert found
        assert {d.expected for d in found} == {PARTS}
    assert {d.expected for d in compared([1], [2]).differences} == {""}
