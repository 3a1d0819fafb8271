"""Which ranks are called late, on timelines made by hand."""

from __future__ import annotations

import pytest

from nbmn.dashboard.lanes import lanes
from nbmn.dashboard.lateness import Late, Lateness, Meeting, latecomers, lateness
from nbmn.dashboard.timeline import html, plain
from nbmn.records import Span, Timeline


def meeting(*came, absent=(), until=0.0):
    return Meeting(dict(enumerate(came)), absent, max(until, *came))


def late(*steps, length=1.0):
    """Who is late; each step is ``length`` seconds and takes the ranks' arrivals at collectives."""
    meetings = []
    for i, step in enumerate(steps):
        for came in step:
            meetings.append(meeting(*(length * i + time for time in came)))
    ends = [length * (i + 1) for i in range(len(steps))]
    return lateness(meetings, ends, length * len(steps))


def who(found):
    return [each.rank for each in found.stragglers]


ZERO_LATE, ONE_LATE = [(0.7, 0.2)], [(0.2, 0.7)]


def test_the_one_of_two_ranks_that_comes_later_is_late():
    assert late(ONE_LATE, ONE_LATE) == Lateness((Late(1, pytest.approx(1.0), 2, 2),))


def test_of_two_ranks_that_are_late_by_turns_neither_is():
    """Both are waited for a quarter of the time."""
    found = late(ZERO_LATE, ONE_LATE, ZERO_LATE, ONE_LATE)
    assert found == Lateness((), turns=(0, 1))


def test_of_two_ranks_never_both_are_late():
    """It counts in how many steps a rank is late; a long wait in one of them is another's."""
    found = late(ZERO_LATE, [(0.05, 0.95)], ZERO_LATE)
    assert found == Lateness((Late(0, pytest.approx(1.0), 2, 3),))


def test_who_is_late_once_is_told_with_the_step():
    even = [(0.4, 0.41)]
    assert late(even, even, even, [(3.0, 0.4)], length=4.0).stragglers == (
        Late(0, pytest.approx(2.6), 1, 4),
    )


def test_what_is_made_up_for_within_a_step_is_not_late():
    """Each waits for the other once in every step, as long as the other for it."""
    found = late(*[[(0.2, 0.4), (0.8, 0.6)]] * 3)
    assert found == Lateness()


def test_noise_is_not_late():
    assert late([(0.50, 0.55)], [(0.55, 0.50)], [(0.50, 0.58)]) == Lateness()


def test_several_that_come_late_together_are_all_late():
    step = [(0.2, 0.7, 0.21, 0.72)]
    found = late(step, step)
    assert who(found) == [3, 1]
    assert [each.seconds for each in found.stragglers] == pytest.approx([2 * 0.51, 2 * 0.49])


def test_one_that_comes_early_makes_nobody_late():
    assert late([(0.1, 0.8, 0.81, 0.8)]) == Lateness()


def test_of_some_that_are_late_who_is_waited_for_longest():
    assert who(late(*[[(0.1, 0.11, 0.25, 0.9)]] * 2)) == [3]


def test_without_steps_each_collective_is_one():
    found = lateness([meeting(1.0, 2.0), meeting(3.0, 4.0), meeting(5.1, 5.0)], (), 6.0)
    assert found.stragglers == (Late(1, pytest.approx(2.0), 2, 3),)


def test_two_of_three_that_never_come_are_no_latecomers():
    assert lateness([Meeting({0: 1.0}, (1, 2), 9.0)], (), 10.0) == Lateness()
    assert who(lateness([Meeting({0: 1.0, 2: 1.1}, (1,), 9.0)], (), 10.0)) == [1]


def test_ranks_of_separate_communicators():
    pairs = [Meeting({0: 0.1, 1: 0.6}, (), 0.7), Meeting({2: 0.1, 3: 0.12}, (), 0.2)]
    assert who(lateness(pairs, (1.0,), 1.0)) == [1]


def test_latecomers_are_half_of_the_ranks_at_most():
    assert latecomers({0: 0.0}, 0.1) == frozenset()
    assert latecomers({0: 0.0, 1: 1.0}, 0.1) == {1}
    assert latecomers({0: 0.0, 1: 1.0, 2: 1.0}, 0.1) == frozenset()
    assert latecomers({0: 1.0, 1: 0.0, 2: 1.0, 3: 0.0}, 0.1) == {0, 2}


def timelines(*late):
    """Two ranks, of which the given one is late in each step."""
    spans = {0: [], 1: []}
    for i, rank in enumerate(late):
        for mine, found in spans.items():
            come = i + (0.7 if mine == rank else 0.2)
            found += [
                Span("data", i, come, "cell [1] line 2"),
                Span("average_gradients", come, i + 0.8, "cell [1] line 3", "7", i + 1),
                Span("update", i + 0.8, i + 1.0, "cell [1] line 3"),
            ]
    ends = tuple(i + 1.0 for i in range(len(late)))
    return [Timeline(rank, "r", 9.0, 9.0, tuple(found), ends) for rank, found in spans.items()]


def test_what_a_person_reads():
    found = lanes(timelines(0, 1, 0, 1))
    for shown in (plain(found), html(found)):
        assert "ranks 0, 1 are late by turns: no rank is in most steps" in shown
        assert "is late:" not in shown
    found = lanes(timelines(1, 0, 1))
    for shown in (plain(found), html(found)):
        assert (
            "rank 1 is late: the other waits for it 33% of the time, in 2 of 3 steps; its data "
            "(cell [1] line 2) takes 533 ms a step, elsewhere 367 ms" in shown
        )
        assert "rank 0 is late" not in shown
        assert "turns" not in shown
