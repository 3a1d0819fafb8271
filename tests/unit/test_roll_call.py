"""Ranks that end while they start."""

from __future__ import annotations

from nbmn.cluster.starting import RollCall


def told(counts: list[int]) -> list[bool]:
    roll = RollCall(2)
    return [
        roll.is_short(10.0 + second, lambda here=here: here) for second, here in enumerate(counts)
    ]


def test_ranks_that_come_and_stay() -> None:
    assert not any(told([0, 1, 1, 2, 3, 2, 2]))


def test_one_that_ends() -> None:
    assert told([0, 2, 1, 1]) == [False, False, False, True]


def test_one_look_is_not_enough() -> None:
    assert not any(told([2, 1, 2, 1, 2]))


def test_ranks_on_other_hosts() -> None:
    assert not any(told([0, 0, 0, 0]))


def test_it_counts_once_a_second() -> None:
    roll, counts = RollCall(2), []
    for tenth in range(100):
        roll.is_short(10 + tenth / 10, lambda: counts.append(2) or 2)
    assert len(counts) == 10
