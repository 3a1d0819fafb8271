"""Phases of ranks, side by side."""

from __future__ import annotations

import pytest

from nbmn.dashboard.lanes import lanes
from nbmn.records import Span, Timeline, decode, encode


def timeline(rank, *spans, now=100.0, clock=100.0):
    return Timeline(rank, "[1]#1", now, clock, tuple(spans))


def mean(begin, end, number, nbytes=4000):
    return Span("average_gradients", begin, end, "cell [1] line 9", "7", number, nbytes)


def phase(name, begin, end, line=3):
    return Span(name, begin, end, f"cell [1] line {line}")


def step(rank, begin, forward, late, number):
    """A step in which a rank computes for ``forward`` seconds, and the last comes at ``late``."""
    return (
        phase("forward", begin, begin + forward),
        mean(begin + forward, late + 0.5, number),
        phase("update", late + 0.5, late + 1.0, 9),
    )


def test_waiting_is_what_the_last_one_is_waited_for():
    found = lanes([timeline(0, *step(0, 10.0, 1.0, 14.0, 1)), timeline(1, *step(1, 10, 4, 14, 1))])
    assert [(bar.rank, bar.kind, bar.begin, bar.end) for bar in found.bars] == [
        (0, "forward", 0.0, 1.0),
        (0, "waiting", 1.0, 4.0),
        (0, "communication", 4.0, 4.5),
        (0, "update", 4.5, 5.0),
        (1, "forward", 0.0, 4.0),
        (1, "communication", 4.0, 4.5),
        (1, "update", 4.5, 5.0),
    ]
    assert found.seconds == 5.0
    assert found.steps == 1
    assert found.shares[0] == {"forward": 1.0, "waiting": 3.0, "communication": 0.5, "update": 0.5}
    assert found.kinds == ("forward", "communication", "waiting", "update")
    assert found.bars[1].detail == "average_gradients #1, 4 kB"
    assert found.bars[1].where == "cell [1] line 9"


def test_the_straggler_and_what_it_takes_its_time_for():
    ranks = []
    for rank in range(3):
        spans = [
            span
            for i in range(4)
            for span in step(rank, 10.0 * i, 6.0 if rank == 1 else 2.0, 10 * i + 6.0, i + 1)
        ]
        ranks.append(timeline(rank, *spans))
    (late,) = lanes(ranks).stragglers
    assert (late.rank, late.times) == (1, 4)
    assert late.share == pytest.approx(4 * 4.0 / 37.0)
    assert (late.kind, late.where) == ("forward", "cell [1] line 3")
    assert (late.mine, late.theirs) == (6.0, 2.0)


def test_equal_ranks_have_no_straggler():
    both = [timeline(rank, *step(rank, 10.0, 2 + 0.1 * rank, 12.1, 1)) for rank in (0, 1)]
    assert lanes(both).stragglers == ()


def test_what_lies_inside_a_phase_is_on_top():
    found = lanes(
        [
            timeline(
                0,
                phase("data", 0.0, 10.0),
                Span("bcast", 2.0, 3.0, "cell [1] line 4", "7", 1),
                phase("inner", 5.0, 6.0),
            )
        ]
    )
    assert [(bar.kind, bar.begin, bar.end) for bar in found.bars] == [
        ("data", 0, 2),
        ("communication", 2, 3),
        ("data", 3, 5),
        ("inner", 5, 6),
        ("data", 6, 10),
    ]
    assert sum(found.shares[0].values()) == 10.0
    assert found.kinds == ("data", "communication", "inner")


def test_a_collective_that_lasts_is_waited_in_until_now():
    found = lanes(
        [
            timeline(0, phase("forward", 90.0, 91.0), mean(91.0, None, 3)),
            timeline(1, phase("forward", 90.0, None)),
        ]
    )
    assert [(bar.rank, bar.kind, bar.end, bar.lasting) for bar in found.bars] == [
        (0, "forward", 1.0, False),
        (0, "waiting", 10.0, True),
        (1, "forward", 10.0, True),
    ]


def test_hosts_with_clocks_of_their_own():
    ranks = [
        timeline(0, phase("data", 10.0, 11.0), now=1000.0, clock=20.0),
        timeline(1, phase("data", 510.5, 511.0), now=1000.0, clock=520.0),
    ]
    bars = lanes(ranks, one_host=False).bars
    assert [(bar.begin, bar.end) for bar in bars] == [(0.0, 1.0), (0.5, 1.0)]


def test_ranks_without_anything():
    assert lanes([timeline(0), timeline(1)]).bars == ()
    one = lanes([timeline(0, phase("data", 1.0, 2.0)), timeline(1)])
    assert one.ranks == (0, 1)
    assert one.shares[1] == {}


def test_timelines_travel():
    record = timeline(1, phase("data", 0.25, None), mean(1.0, 2.0, 4))
    assert decode(encode([record])) == [record]
