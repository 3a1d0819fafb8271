"""Objects that refer to each other, and to themselves, compared over ranks."""

from __future__ import annotations

import time

import numpy as np
import pytest
from comparing import compared, told

from nbmn.debug.digests import Digests
from nbmn.debug.fingerprint import DEEP, MOST, fingerprint


class Node:
    def __init__(self, number):
        self.number = number


def meshed(count, odd=None):
    """Nodes each of which refers to all others."""
    nodes = [Node(i if i != odd else -1) for i in range(count)]
    for node in nodes:
        node.nbrs = [other for other in nodes if other is not node]
    return nodes[0]


def doubled(times, value=0):
    made = [value]
    for _ in range(times):
        made = [made, made]
    return made


def chained(count, last):
    made = [last]
    for _ in range(count):
        made = [made]
    return made


def test_objects_that_refer_to_each_other_are_looked_into_once():
    nodes, their_class = 14 * (3 + 13) + 1 - 14, 14 + 3  # with __init__ and its two defaults
    assert len(fingerprint(meshed(14)).leaves) == nodes + their_class
    assert told(meshed(14), meshed(14)) == {}
    words = told(meshed(14), meshed(14, odd=2))
    assert words == {".nbrs[0].nbrs[1].number": [((1,), "-1, not 2", (0,))]}


def test_an_object_in_many_places_differs_in_one():
    assert len(fingerprint(doubled(60)).leaves) == 122
    assert told(doubled(60), doubled(60)) == {}
    ((path, ((_, words, _),)),) = told(doubled(60), doubled(60, 1)).items()
    assert (path, words) == ("[0]" * 61, "1, not 0")
    assert told({"a": doubled(60)}, {"a": doubled(59)}) != {}


def test_a_part_that_comes_back_says_where_it_stands():
    one = [1]
    leaves = fingerprint([one, {"b": one}]).leaves
    assert leaves["[1]['b']"].text == "the same as [0]"
    assert "[1]['b'][0]" not in leaves


@pytest.mark.parametrize("folds", [False, True])
def test_ranks_may_share_objects_that_are_copies_on_others(folds):
    def made(shared, last=1):
        one = [1, {"x": np.zeros(2)}]
        value = [one, one if shared else [last, {"x": np.zeros(2)}]]
        return chained(DEEP + 9, value) if folds else value

    assert told(made(True), made(False), made(True)) == {}
    words = told(made(True), made(False, last=7), made(False))
    assert [group[:1] for groups in words.values() for group in groups] == [((1,),)]
    if not folds:
        assert words == {"[1][0]": [((1,), "7, not 1", (0, 2))]}


def test_arrays_are_found_where_each_rank_has_them():
    def made(shared, value=0.0):
        one = {"x": np.zeros(3)}
        return [one, one if shared else {"x": np.array([0, value, 0])}]

    assert told(made(True), made(False, 5.0)) == {
        "[1]['x']": [((1,), "1 of 3 elements; at most by 5 at [1] (5.0, not 0.0)", (0,))]
    }
    assert told(made(True), made(False, 1e-4), tolerance=1e-3) == {}


def test_rings_of_other_lengths_that_go_on_alike():
    def ring(length, odd=None):
        nodes = [Node(0) for _ in range(length)]
        for i, node in enumerate(nodes):
            node.next = nodes[(i + 1) % length]
        if odd is not None:
            nodes[odd].number = 1
        return nodes[0]

    assert told(ring(2), ring(3)) == {}
    assert told(ring(2), ring(3, odd=2)) == {
        ".next.next.number": [((1,), "1, not 0", (0,))],
        ".next.next.next.next.next.number": [((1,), "1, not 0", (0,))],
    }
    outcome = compared(ring(83), ring(97))
    assert outcome.opaque == ("objects that each rank shares in another way",)
    assert outcome.uncompared == 1


@pytest.mark.parametrize("count", [DEEP // 2, 5000, 20_000])
def test_what_lies_deep_is_compared(count):
    assert told(chained(count, 1), chained(count, 1)) == {}
    ((words,),) = told(chained(count, 1), chained(count, 2)).values()
    assert words[1] == ("2, not 1" if count < DEEP else "list and all in it, but not the same")
    assert compared(chained(count, 1), chained(count, 1)).uncompared == 0


def test_a_long_list_of_nodes_takes_time_by_their_number():
    def made(odd=None):
        nodes = [Node(i if i != odd else -1) for i in range(3000)]
        for i, node in enumerate(nodes):
            node.nbrs = [nodes[i - 1], nodes[i - 2]]
        return nodes

    began = time.perf_counter()
    assert told(made(), made()) == {}
    assert set(told(made(), made(odd=7))) == {""}
    assert time.perf_counter() - began < 10


def test_many_more_entries_than_are_told_apart():
    a = [[i, [i]] for i in range(900)]
    b = [[i, [i] if i != 890 else [0]] for i in range(900)]
    many = {str(i): a for i in range(MOST)}
    assert told(many, dict.fromkeys(many, a)) == {}
    assert told(many, dict.fromkeys(many, b)) != {}


def test_objects_that_make_new_ones_for_ever_end():
    class Endless:
        def __reduce__(self):
            return Endless, (Endless(),)

    digests = Digests(limit=1000)
    assert digests.of(Endless()) == Digests(limit=1000).of(Endless())
    assert digests.unknown == {"all that comes after the first millions of objects"}


def test_objects_that_are_made_when_asked_for_are_told_apart():
    class Fresh:
        """Its parts live only while they are looked at, and may have each other's place."""

        def __init__(self, numbers):
            self.numbers = numbers

        def __reduce__(self):
            return Fresh, tuple([[number]] for number in self.numbers)

    assert set(told(Fresh(range(50)), Fresh([*range(49), 7]))) == {".__reduce__[49][0][0]"}
