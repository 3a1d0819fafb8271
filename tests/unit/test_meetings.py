"""Meetings in shared memory, without ranks: what the others see, in whatever order they come."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbmn.communicators.meetings import LINE, Meeting, Meetings


def group(size):
    lines = [memoryview(bytearray(8 * LINE)).cast("Q") for _ in range(size)]
    ranks = [Meetings(line) for line in lines]
    for meetings in ranks:
        meetings.everyone = lines
    return ranks


def word(rank, number):
    return 1000 * rank + number


@given(st.integers(1, 5), st.data())
def test_all_see_all_words_in_any_order_of_steps(size, data):
    ranks = group(size)
    under_way = [Meeting(meetings, word(rank, 0)) for rank, meetings in enumerate(ranks)]
    seen = [[] for _ in ranks]
    for rank in data.draw(st.lists(st.integers(0, size - 1), max_size=60)):
        if under_way[rank].Test():
            seen[rank].append(under_way[rank].words)
            under_way[rank] = Meeting(ranks[rank], word(rank, len(seen[rank])))
    for words in seen:
        assert words == [[word(r, n) for r in range(size)] for n in range(len(words))]
    assert max(map(len, seen)) - min(map(len, seen)) <= 1


@given(st.integers(2, 4), st.integers(1, 6), st.data())
def test_who_begins_several_at_once_shows_them_one_by_one(size, count, data):
    ranks = group(size)
    begun = [[Meeting(ranks[0], word(0, n)) for n in range(count)]]
    begun += [[] for _ in range(size - 1)]
    for rank in data.draw(st.permutations([r for r in range(1, size) for _ in range(count)])):
        begun[rank].append(Meeting(ranks[rank], word(rank, len(begun[rank]))))
    for _ in range(count):
        for meeting in (m for mine in begun for m in mine):
            meeting.Test()
    for mine in begun:
        assert all(meeting.Test() for meeting in mine)
        assert [m.words for m in mine] == [[word(r, n) for r in range(size)] for n in range(count)]


def test_nobody_is_through_before_all_have_come():
    ranks = group(3)
    first, second = Meeting(ranks[0], 1), Meeting(ranks[1], 2)
    assert not first.Test()
    assert not second.Test()
    third = Meeting(ranks[2], 3)
    assert third.Test()
    assert first.Test()
    assert first.Test()  # again
    assert first.words == third.words == [1, 2, 3]


@pytest.mark.parametrize("ahead", [1, 2, 3])
def test_what_was_shown_before_a_reset_is_not_seen_after_it(ahead):
    ranks = group(2)
    for n in range(ahead):
        both = [Meeting(meetings, n) for meetings in ranks]
        assert all(meeting.Test() for meeting in both)
    Meeting(ranks[0], 77)  # never ends
    ranks[0].reset()
    early = Meeting(ranks[0], 5)
    assert not early.Test()
    ranks[1].reset()
    assert not early.Test()
    late = Meeting(ranks[1], 6)
    assert late.Test()
    assert early.Test()
    assert early.words == late.words == [5, 6]


def test_progress_is_made_while_others_are_awaited():
    calls = []
    (meetings, _) = group(2)
    meetings.progress = lambda: calls.append(1)
    meeting = Meeting(meetings, 1)
    meeting.Test()
    meeting.Test()
    assert len(calls) == 2
