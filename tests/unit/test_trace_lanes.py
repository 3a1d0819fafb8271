"""Phases of ranks, side by side."""

from __future__ import annotations

import pytest

from nbmn.dashboard.lanes import lanes
from nbmn.dashboard.timeline import html, plain
from nbmn.records import Group, Span, Timeline, decode, encode


def timeline(rank, *spans, now=100.0, clock=100.0, run="[1]#1", groups=()):
    ends = tuple(span.end for span in spans if span.name == "update")
    return Timeline(rank, run, now, clock, tuple(spans), ends, groups)


def mean(begin, end, number, nbytes=4000):
    return Span(
        "average_gradients", begin, end, "cell [1] line 9", "7", 40 + number, nbytes, number
    )


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
    assert (late.rank, late.late, late.of) == (1, 4, 4)
    assert late.share == pytest.approx(4 * 4.0 / 37.0)
    assert (late.kind, late.where) == ("forward", "cell [1] line 3")
    assert (late.mine, late.theirs) == (6.0, 2.0)


def test_a_phase_that_explains_nothing_is_not_named():
    """Rank 1 took its time between its phases; that its forward was the longer one is chance."""
    spans = {
        0: (phase("forward", 0.0, 1.0), mean(1.0, 9.5, 1)),
        1: (phase("forward", 0.0, 1.1), mean(9.0, 9.5, 1)),
    }
    (late,) = lanes([timeline(rank, *each) for rank, each in spans.items()]).stragglers
    assert (late.rank, late.kind) == (1, "")
    assert late.share == pytest.approx(8 / 9.5)


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


EVERYONE = (Group("7", (0, 1, 2)),)


@pytest.mark.parametrize("end", [17.0, None])
def test_who_never_came_is_late_and_the_others_waited(end):
    """Also when they were interrupted, and have left what they waited in."""
    ranks = [
        timeline(0, mean(10.0, 10.1, 1), mean(10.2, end, 2), clock=17.0),
        timeline(1, mean(10.0, 10.1, 1), clock=17.0),
        timeline(2, mean(10.0, 10.1, 1), mean(10.3, end, 2), clock=17.0),
    ]
    found = lanes(ranks)
    assert found.shares[0] == {"communication": pytest.approx(0.1), "waiting": pytest.approx(6.8)}
    assert found.shares[2]["waiting"] == pytest.approx(6.7)
    (late,) = found.stragglers
    assert (late.rank, late.late, late.share) == (1, 1, pytest.approx(6.7 / 7))
    assert "rank 1 is late: the others wait for it 96% of the time" in plain(found)


def test_a_rank_that_has_done_nothing_at_all_is_late():
    waits = [timeline(r, mean(10.0, 17.0, 1), groups=EVERYONE) for r in (0, 2)]
    (late,) = lanes([*waits, timeline(1)]).stragglers
    assert (late.rank, late.kind, late.share) == (1, "", 1.0)


def test_who_is_no_member_of_the_communicator_is_not_late():
    pair = (Group("7", (0, 2)),)
    found = lanes([timeline(1), *(timeline(r, mean(10.0, 17.0, 1), groups=pair) for r in (0, 2))])
    assert found.stragglers == ()
    assert found.shares[0] == {"communication": 7.0}


def test_nobody_is_late_for_what_came_after_it_was_asked():
    ranks = [
        timeline(0, mean(10.0, 11.0, 1), mean(11.0, 12.0, 2), clock=12.0),
        timeline(1, mean(10.0, 11.0, 1), clock=10.9),
    ]
    assert lanes(ranks).stragglers == ()
    assert lanes(ranks).shares[0] == {"communication": 2.0}


def test_some_of_the_ranks_are_shown():
    found = lanes([timeline(0, mean(10.0, 17.0, 1), groups=EVERYONE)])
    assert found.shares[0] == {"communication": 7.0}


def test_what_a_rank_did_in_an_earlier_cell_is_not_shown():
    newer = timeline(0, phase("data", 50.0, 51.0), run="[2]#2")
    older = timeline(1, *step(1, 10.0, 4, 14, 1), phase("data", 50.2, 50.4))
    found = lanes([newer, older])
    assert [(bar.rank, bar.begin) for bar in found.bars] == [(0, 0.0), (1, pytest.approx(0.2))]


def test_where_no_steps_are_marked_none_is_spoken_of():
    ranks = [
        timeline(rank, phase("data", 10.0, 11 + 4 * (rank == 0)), mean(11 + 4 * (rank == 0), 16, 1))
        for rank in (0, 1)
    ]
    found = lanes(ranks)
    said = (
        "rank 0 is late: the other waits for it 67% of the time; its data (cell [1] line 3) takes "
        "5 s, elsewhere 1 s"
    )
    for shown in (plain(found), html(found)):
        assert said in shown
        assert "no steps marked: showing the last cell" in shown
    marked = lanes([timeline(rank, *step(rank, 10.0, 1.0, 11.0, 1)) for rank in (0, 1)])
    assert "no steps marked" not in plain(marked) + html(marked)


def test_timelines_travel():
    record = timeline(1, phase("data", 0.25, None), mean(1.0, 2.0, 4), groups=EVERYONE)
    assert decode(encode([record])) == [record]
