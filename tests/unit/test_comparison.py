"""Fingerprints of values, and what their comparison says."""

from __future__ import annotations

import random
import threading
from types import SimpleNamespace

import chainer.links as L
import numpy as np
import pytest
from comparing import compared, told

from nbmn.debug.comparison import compare
from nbmn.debug.fingerprint import MOST, REST, fingerprint


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


def test_random_states_by_what_comes_next():
    one, other = np.random.RandomState(1), np.random.RandomState(1)
    assert told(one, other) == {}
    other.rand()
    assert set(told(one, other)) == {""}
    before = np.random.get_state()[1].copy()
    fingerprint(np.random)
    np.testing.assert_array_equal(np.random.get_state()[1], before)


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
