"""Fingerprints of values, and what their comparison says."""

from __future__ import annotations

import random
import re
import threading
from types import SimpleNamespace

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from IPython.core.error import UsageError

from nbmn.debug.comparison import Comparison, closer, compare, how, plan
from nbmn.debug.contrast import contrast
from nbmn.debug.expected import PARTS, STATISTICS
from nbmn.debug.fingerprint import MOST, REST, fingerprint
from nbmn.magics.diff import Asked, parse


def compared(*values, tolerance=0.0) -> Comparison:
    """What ranks with these values find, as they go about it."""
    found = [fingerprint(value) for value in values]
    outcome = compare({rank: each.leaves for rank, each in enumerate(found)}, tolerance)
    seen = {
        (move.path, target): contrast(
            found[target].arrays[move.places[target]],
            found[move.source].arrays[move.places[move.source]],
            move.tolerance,
        )
        for move in plan(outcome)
        for target in move.targets
    }
    return closer(outcome, seen)


def told(*values, tolerance=0.0) -> dict[str, list[tuple]]:
    """Differences by path: ranks, words, ranks of the reference."""
    outcome = compared(*values, tolerance=tolerance)
    return {
        difference.path: [
            (
                group.ranks,
                how(
                    group,
                    difference.reference,
                    outcome.contrasts.get((difference.path, group.ranks[0])),
                ),
                difference.reference.ranks,
            )
            for group in difference.others
        ]
        for difference in outcome.differences
    }


@pytest.mark.parametrize(
    "make",
    [
        lambda: 0.1,
        lambda: np.arange(12).reshape(3, 4)[:, ::2],
        lambda: {"a": [1, 2.5, "x"], (1, 2): {3, 4}, None: b"b"},
        lambda: [np.zeros(0), np.float64(3), np.array(["x", "y"]), np.array([None, 3])],
        lambda: random.Random(4),
        lambda: np.random.default_rng(4),
        lambda: SimpleNamespace(lock=threading.Lock(), f=lambda x, y=2: x + y),
        lambda: [float(i) for i in range(2000)],
        lambda: [(i, str(i)) for i in range(2000)],
        lambda: dict.fromkeys(range(2 * MOST)),
        lambda: L.BatchNormalization(4),
        lambda: np.array([np.nan, 1.0]),
    ],
)
def test_equal_values_are_alike(make):
    assert told(make(), make()) == {}


def test_the_reference_is_what_most_have():
    assert told(1, 2, 2, 3) == {
        "": [((0,), "1, not 2", (1, 2)), ((3,), "3, not 2", (1, 2))],
    }
    assert told("b", "a") == {"": [((1,), "'a', not 'b'", (0,))]}


def test_each_entry_has_a_reference_of_its_own():
    assert told({"lr": 1, "t": 5}, {"lr": 2, "t": 5}, {"lr": 1, "t": 6}) == {
        "['lr']": [((1,), "2, not 1", (0, 2))],
        "['t']": [((2,), "6, not 5", (0, 1))],
    }


def test_missing_and_additional_entries_are_told_once():
    words = told({"a": {"b": 1}}, {}, {"a": {"b": 1}, "c": [1, 2]})
    assert words[""] == [
        ((1,), "dict of 0, not dict of 1", (0,)),
        ((2,), "dict of 2, not dict of 1", (0,)),
    ]
    assert words["['a']"] == [((1,), "is missing", (0, 2))]
    assert words["['c']"] == [((2,), "is there: list of 2", (0, 1))]
    assert set(words) == {"", "['a']", "['c']"}


def test_the_parts_of_different_things_are_not_compared():
    assert told([1, 2], (1, 2), [1, 2]) == {"": [((1,), "tuple of 2, not list of 2", (0, 2))]}
    assert told(1, 1.0) == {"": [((1,), "float 1.0, not int 1", (0,))]}


def test_the_numbers_of_arrays():
    a = np.zeros((3, 4), np.float32)
    b = a.copy()
    b[1, 2], b[2, 3] = 0.5, -3.0
    assert told(a, a, b) == {
        "": [((2,), "2 of 12 elements; at most by 3 at [2, 3] (-3.0, not 0.0)", (0, 1))]
    }
    b[0, 0] = np.nan
    assert told(a, b)[""][0][1].endswith("1 NaN, not 0")
    a[1, 1] = np.inf
    ((_, words, _),) = told(a, b)[""]
    assert "at most by inf at [1, 1] (0.0, not inf)" in words


def test_arrays_that_differ_in_bits_only_are_alike():
    assert told(np.array([0.0, 1.0]), np.array([-0.0, 1.0])) == {}
    one, other = np.array([np.nan]), np.array([-np.nan])
    assert one.tobytes() != other.tobytes()
    assert told(one, other) == {}


@pytest.mark.parametrize(
    ("a", "b", "words"),
    [
        (np.zeros(3), np.zeros(4), "float64 (4,), not float64 (3,)"),
        (np.zeros(2, "i"), np.zeros(2, "q"), "int64 (2,), not int32 (2,)"),
        (np.array(2.0), np.array(5.0), "1 of 1 elements; at most by 3 (5.0, not 2.0)"),
        (
            np.array([0, 2**64 - 1], "Q"),
            np.array([0, 0], "Q"),
            "1 of 2 elements; at most by 1.84e+19 at [1] (0, not 18446744073709551615)",
        ),
        (np.array([True]), np.array([False]), "1 of 1 elements; at most by 1 at [0]"),
        (np.array(["a", "b"]), np.array(["a", "c"]), "1 of 2 elements; at [1] (c, not b)"),
        (np.array([1 + 1j]), np.array([1 - 1j]), "at most by 2 at [0]"),
    ],
)
def test_arrays_of_all_kinds(a, b, words):
    ((_, said, _),) = told(a, b)[""]
    assert words in said


def test_items_of_long_lists():
    a = [(i, str(i)) for i in range(5000)]
    b = [*a]
    b[4321] = (0, "")
    assert told(a, b) == {"": [((1,), "1 of 5,000 items; first at [4321]", (0,))]}
    numbers = [float(i) for i in range(5000)]
    assert (
        "by 1 at [7] (8.0, not 7.0)" in told(numbers, [*numbers[:7], 8.0, *numbers[8:]])[""][0][1]
    )


def test_what_is_past_the_limit_is_compared_as_one():
    a = {i: i for i in range(MOST + 50)}
    last = max(a, key=str)
    ((words),) = told(a, {**a, last: 0})[REST]
    assert words[1] == "51 more entries, but not the same"
    assert len(fingerprint(a).leaves) == MOST + 1
    assert told(a, dict(reversed(a.items()))) == {}


def test_values_that_hold_themselves():
    a = [1]
    a.append(a)
    b = [2]
    b.append(b)
    assert set(told(a, b)) == {"[0]"}


def test_failures_are_told_apart():
    outcome = compare({0: fingerprint(1).leaves, 1: "NameError: x", 2: fingerprint(2).leaves})
    assert outcome.failures == {1: "NameError: x"}
    ((group,),) = [difference.others for difference in outcome.differences]
    assert group.ranks == (2,)


def test_nans_that_all_ranks_have_are_told():
    assert compared([np.array([np.nan])], [np.array([np.nan])]).nans == ("[0]",)
    assert compared([np.array([1.0])], [np.array([np.nan])]).nans == ()


def test_what_cannot_be_looked_into_is_told():
    assert compared([threading.Lock()], [threading.Lock()]).opaque == ("lock",)
    deep = [[[threading.Lock()] for _ in range(2000)] for _ in range(2)]
    assert compared(*deep).opaque == ("lock",)
    assert set(told((i for i in "a"), threading.Lock())) == {""}

    class Odd:
        def __reduce__(self):
            raise ValueError("no")

    ((kind,),) = [compared(Odd(), Odd()).opaque]
    assert kind == "Odd (ValueError: no)"


def test_functions_by_what_they_do():
    def made(n):
        return lambda x: x + n

    assert told(made(1), made(1)) == {}
    assert told(made(1), made(2))[".n"][0][1] == "2, not 1"
    assert set(told(lambda x: x + 1, lambda x: x - 1)) == {""}


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


def test_random_states_by_what_comes_next():
    one, other = np.random.RandomState(1), np.random.RandomState(1)
    assert told(one, other) == {}
    other.rand()
    assert set(told(one, other)) == {""}
    before = np.random.get_state()[1].copy()
    fingerprint(np.random)
    np.testing.assert_array_equal(np.random.get_state()[1], before)


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


@pytest.mark.parametrize(
    ("one", "other", "tolerance", "alike"),
    [
        (1.0, 1.0009, 1e-3, True),
        (1.0, 1.0011, 1e-3, False),
        (np.float32(1), np.float32(1.0009), 1e-3, True),
        (3, 5, 2, True),
        (3, 6, 2, False),
        (1, 1.0, 1, False),  # of another type
        (True, False, 1, False),
        ("1", "2", 1, False),
        (float("nan"), 1.0, 1, False),
        (np.zeros(3), np.array([0, 1e-4, -1e-3]), 1e-3, True),
        (np.zeros(3), np.array([0, 1e-4, -2e-3]), 1e-3, False),
        (np.zeros(3), np.array([0, np.nan, 0]), 1e-3, False),
        (np.array([np.nan, 0]), np.array([0, np.nan]), 1e-3, False),
        (np.array([np.inf, np.nan]), np.array([np.inf, np.nan]), 1e-3, True),
        (np.zeros(2, int), np.array([0, 2]), 2, True),
        (np.zeros(2, "f"), np.zeros(2), 1, False),
        ([0.0] * 2000, [0.0] * 1999 + [0.5], 0.5, True),
        ([(0,)] * 2000, [(0,)] * 1999 + [(1,)], 1e30, False),  # digests are no numbers
    ],
)
def test_numbers_within_a_tolerance_are_alike(one, other, tolerance, alike):
    assert bool(told([one], [one], [other], tolerance=tolerance)) is not alike


def test_a_tolerance_counts_what_is_beyond_it():
    a = np.array([0.0, 1e-4, 0.5, -2.0])
    ((_, words, _),) = told(np.zeros(4), a, tolerance=0.01)[""]
    assert words == "2 of 4 elements; at most by 2 at [3] (-2.0, not 0.0)"


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


@pytest.mark.parametrize(
    ("line", "asked"),
    [
        ("model", Asked("model")),
        ("model 0,2", Asked("model", ("0,2",))),
        ("a + b 1:", Asked("a + b", ("1:",))),
        ("a -1", Asked("a -1")),
        ("a.b[0]  1:", Asked("a.b[0]", ("1:",))),
        ("a.b[0] 0, 2 --tol 1", Asked("a.b[0]", ("0,", "2"), 1.0)),
        ("d['x y'] all", Asked("d['x y']", ("all",))),
        ("[x for x in y]", Asked("[x for x in y]")),
        ("model --tol 1e-3", Asked("model", (), 1e-3)),
        ("model 0,1 --tol=0.5", Asked("model", ("0,1",), 0.5)),
        ("model --tol 1 0,1", Asked("model", ("0,1",), 1.0)),
        ("d['x --tol']", Asked("d['x --tol']")),
        ("a --1", Asked("a --1")),
    ],
)
def test_ranks_and_options_come_last(line, asked):
    assert parse(line) == asked


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("model --tolerance 1e-3", "%mn_diff has no option --tolerance; write %mn_diff EXPR [RANK"),
        ("model 0,1 --bg", "no option --bg"),
        ("model --tol", "--tol takes a number such as 1e-3, not ''; write %mn_diff EXPR"),
        ("model --tol x", "not 'x'"),
        ("model --tol -1", "not '-1'"),
        ("model --tol nan", "not 'nan'"),
        ("model x", "'x' is no choice of ranks, such as 0,2; write %mn_diff EXPR [RANKS] [--tol"),
        ("x = 3", "'x = 3' is not an expression"),
        ("--help", "%mn_diff EXPR [RANKS] [--tol 1e-3]\n\nCompare the value of an expression"),
        ("-h", "What most ranks have is the reference"),
        ("model( --tol 1", "is not an expression"),
        ("", "needs an expression"),
    ],
)
def test_a_wrong_option_is_named_with_the_usage(line, said):
    with pytest.raises(UsageError, match=re.escape(said)):
        parse(line)
