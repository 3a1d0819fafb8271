"""Values of unusual kinds, compared over ranks: neither a false alarm nor a false all-clear."""

from __future__ import annotations

import re

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from comparing import compared, told

from nbmn.cluster.differences import headline, show_comparison


class Plain:
    def __init__(self, name="a"):
        self.name = name


def test_a_matrix_is_an_array_of_its_own_kind():
    one, other = (np.array([[1.0, 2], [3, last]]).view(np.matrix) for last in (4, 9))
    assert told(one, one.copy()) == {}
    ((_, words, _),) = told(one, other)[""]
    assert words == "1 of 4 elements; at most by 5 at [1, 1] (9.0, not 4.0)"
    ((_, words, _),) = told(one, np.asarray(other))[""]
    assert words.startswith("float64 (2, 2), not matrix float64 (2, 2); 1 of 4")


def test_what_is_under_a_mask_does_not_count():
    one = np.ma.array([1.0, 2, 3], mask=[0, 1, 0])
    assert told(one, np.ma.array([1.0, 99, 3], mask=[0, 1, 0])) == {}
    assert told(one, np.ma.array([1.0, np.nan, 3], mask=[0, 1, 0])) == {}
    assert set(told(one, np.ma.array([1.0, 2, 4], mask=[0, 1, 0]))) == {".data"}
    assert ".mask" in told(one, np.ma.array([1.0, 2, 3], mask=[0, 0, 0]))
    assert told(np.ma.array([1, 2])[::-1], np.ma.array([1, 2])[::-1]) == {}
    records = np.ma.array([("x", 1.0)], dtype=[("a", "U3"), ("b", "f8")], mask=[(True, False)])
    assert told(records, records.copy()) == {}


def test_arrays_of_a_users_class_with_attributes():
    class Quantity(np.ndarray):
        pass

    def made(unit):
        value = np.arange(3.0).view(Quantity)
        value.unit = unit
        return value

    assert told(made("m"), made("m")) == {}
    assert set(told(made("m"), made("s"))) == {".unit"}


def records(*rows):
    return np.array([*rows], [("x", "f8"), ("y", "f4", 2), ("z", [("n", "i4")])])


def test_nan_in_a_record_equals_nan():
    one = records((np.nan, (1, np.nan), (3,)), (0.0, (1, 2), (3,)))
    other = records((-np.nan, (1, -np.nan), (3,)), (-0.0, (1, 2), (3,)))
    assert one.tobytes() != other.tobytes()
    assert told(one, other) == {}
    other["y"][1, 1] = 5
    assert told(one, other)[""][0][1].startswith("1 of 2 elements; at [1]")
    other["y"][1, 1], other["z"]["n"][0] = 2, 4
    assert told(one, other)[""][0][1].startswith("1 of 2 elements; at [0]")
    assert "float64 (2,)" in told(one, np.zeros(2))[""][0][1]


def test_objects_in_arrays():
    one = np.array([[None, 1], [2, "x"]], object)
    assert told(one, one.copy()) == {}
    assert set(told(one, np.array([[None, 1], [2, "y"]], object))) == {"[1][1]"}
    assert told(np.array(None, object), np.array(None, object)) == {}
    assert set(told(np.array(None, object), np.array(3, object))) == {"[()]"}


@pytest.mark.parametrize(
    "make",
    [
        lambda name: {Plain(): 1, Plain(name): 2},
        lambda name: {Plain(), Plain(name)},
        lambda name: {(1, Plain(name)): 2},
        lambda name: {frozenset({Plain(name), Plain()})},
        lambda name: {("f", lambda: None): 1, name: 2},
        lambda name: {Plain: name},
    ],
)
def test_keys_that_are_plain_objects(make):
    assert told(make("a"), make("a"), make("a")) == {}
    assert told(make("b"), make("b")) == {}
    words = told(make("a"), make("b"))
    assert words
    assert " at 0x" not in str(words)


def test_values_of_keys_that_are_plain_objects():
    assert list(told({Plain(): 1, Plain("b"): 2}, {Plain("b"): 2, Plain(): 3}).values()) == [
        [((1,), "3, not 1", (0,))]
    ]


def test_a_set_that_holds_itself():
    def made(name):
        one = Plain(name)
        one.within = {one}
        return one

    assert told(made("a"), made("a")) == {}
    assert ".name" in told(made("a"), made("b"))


class Held(chainer.Chain):
    def __init__(self, **attributes):
        super().__init__()
        with self.init_scope():
            self.l1 = L.Linear(2, 2, initialW=0)
        for name, value in attributes.items():
            setattr(self, name, value)


@pytest.mark.parametrize(
    ("name", "one", "other"),
    [
        ("table", np.zeros(3), np.array([0.0, 1, 0])),
        ("sizes", [1, 2], [1, 3]),
        ("options", {"a": 1}, {"a": 2}),
        ("activation", F.relu, F.tanh),
        ("blocks", [L.Linear(1, 1, initialW=0)], [L.Linear(1, 1, initialW=1)]),
        ("plain", Plain(), Plain("b")),
    ],
)
def test_what_a_chain_holds_besides_links(name, one, other):
    assert told(Held(**{name: one}), Held(**{name: one})) == {}
    ((path, _),) = told(Held(**{name: one}), Held(**{name: other})).items()
    assert path.startswith(f".{name}")


def test_a_chain_that_holds_a_link_twice_and_results():
    def made(weight):
        model = Held()
        model.last = model.l1
        model.l1.W.array[...] = weight
        model.results = [model.l1(np.full((1, 2), weight, "f"))]
        return model

    assert set(told(made(1), made(2))) == {"/l1/W"}


def test_functions_by_all_their_defaults():
    def made(n):
        def function(x, *, scale=n):
            return x * scale

        return function

    assert told(made(1), made(1)) == {}
    assert set(told(made(1), made(2))) == {".__kwdefaults__['scale']"}
    one, other = made(1), made(1)
    other.kind = "b"
    assert ".kind" in told(one, other)


def test_lists_and_dicts_of_a_users_class_have_attributes():
    class Named(list):
        pass

    class Settings(dict):
        pass

    for kind in (Named, Settings):
        one, other = kind(), kind()
        one.name, other.name = "a", "b"
        assert set(told(one, other)) == {".name"}


class Unmeasured:
    def __len__(self):
        raise ValueError(f"no length of {object()}")

    def __getitem__(self, i):
        raise IndexError


@pytest.mark.parametrize("make", [lambda: (i for i in "ab"), Unmeasured])
def test_the_headline_says_what_could_not_be_compared(make):
    alone = compared(make(), make())
    assert headline("g", alone) == "g: cannot be compared; of the same type on ranks 0, 1"
    within = compared([1, make()], [1, make()])
    assert headline("g", within) == (
        "g: alike on ranks 0, 1 as far as can be compared; 1 of 3 entries cannot"
    )
    assert "not compared, only their types: " in show_comparison("g", within).text
    inside = compared({"a": [[make()]] * 2000}, {"a": [[make()]] * 2000})
    assert headline("g", inside).endswith("1 of 2 entries cannot")


def test_texts_that_are_too_long_to_be_told_apart():
    ((_, words, _),) = told("x" * 99 + "a", "x" * 99 + "b")[""]
    assert re.fullmatch("'x+…, but not the same", words)
    assert told(10**9000, 10**9000) == {}
    assert told(10**9000, 10**9000 + 1) != {}
