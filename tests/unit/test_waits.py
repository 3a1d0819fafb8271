"""Who waits for whom, and who for ever."""

from __future__ import annotations

import pytest
from rank_states import over, raised, runs, states, waiting

from nbmn.debug import waits
from nbmn.debug.states import RankState
from nbmn.debug.waits import need


def stuck(found: dict[int, RankState]) -> set[int]:
    return {state.rank for state in waits.stuck(found)}


@pytest.mark.parametrize(
    ("state", "other", "waits"),
    [
        (waiting(0), waiting(1), False),  # both are in it
        (waiting(0), waiting(1, "bcast"), True),  # another operation
        (waiting(0), waiting(1, number=6), False),  # it went through
        (waiting(0), waiting(1, number=4), True),
        (waiting(0), waiting(1, link="x"), True),
        (waiting(0), over(1, begun=5), False),
        (waiting(0), over(1, begun=4), True),
        (waiting(0), raised(1, begun=5), True),  # perhaps in the middle of it
        (waiting(0), raised(1, begun=6), False),
        (waiting(0), runs(1, begun=5), False),
        (waiting(0), runs(1), True),
        (waiting(0, link="", number=0), waiting(1, link="", number=0), False),
        (waiting(0, link="", number=0), over(1), True),
        (waiting(0, members=(0, 2)), over(1), False),  # not one of them
        (waiting(0, "recv", peer=1, tag=3), waiting(1, "send", peer=0, tag=3), False),
        (waiting(0, "recv", peer=1, tag=3), waiting(1, "send", peer=0, tag=4), True),
        (waiting(0, "recv", peer=1), waiting(1, "send", peer=0, tag=4), False),  # any tag
        (waiting(0, "recv", peer=1, tag=3), waiting(1, "send", peer=2, tag=3), True),
        (waiting(0, "recv", peer=1, tag=3), waiting(1, "recv", peer=0, tag=3), True),
        (waiting(0, "recv", peer=1, tag=3), waiting(1, "send", peer=0, tag=3, link="x"), True),
        (waiting(0, "recv_obj"), waiting(1, "send_obj", peer=0, tag=1), False),  # from any rank
        (waiting(0, "send", peer=1, tag=3), waiting(1, "recv"), False),
        (waiting(0, "send", peer=1, tag=3), waiting(1), True),
    ],
)
def test_whom_a_rank_waits_for(state: RankState, other: RankState, waits: bool) -> None:
    assert (1 in need(state, states(state, other)).ranks) is waits


def test_a_rank_is_stuck_only_if_nobody_can_help_it() -> None:
    assert stuck(states(waiting(0), waiting(1), waiting(2), waiting(3))) == frozenset()
    assert stuck(states(waiting(0), runs(1), waiting(2), waiting(3))) == frozenset()
    assert stuck(states(waiting(0), over(1), waiting(2), waiting(3))) == {0, 2, 3}
    silent = RankState(1, "silent")
    assert stuck(states(waiting(0), silent, waiting(2), waiting(3))) == frozenset()
    prompt = RankState(1, "debugging")
    assert stuck(states(waiting(0), prompt, waiting(2), waiting(3))) == frozenset()


def test_one_that_may_come_does_not_help_where_all_must() -> None:
    found = states(waiting(0), over(1), runs(2), waiting(3))
    assert stuck(found) == {0, 3}
    assert stuck(states(waiting(0, "recv"), over(1), runs(2), over(3))) == frozenset()
    assert stuck(states(waiting(0, "recv"), over(1), over(2), over(3))) == {0}


def test_waits_for_ranks_that_are_stuck_are_stuck() -> None:
    chain = [waiting(rank, "recv", peer=rank - 1, tag=0) for rank in (1, 2, 3)]
    assert stuck(states(over(0), *chain)) == {1, 2, 3}
    assert stuck(states(runs(0), *chain)) == frozenset()


def test_ranks_in_a_sub_communicator_go_on() -> None:
    pair = [waiting(rank, "barrier", 1, link="p", members=(2, 3)) for rank in (2, 3)]
    assert stuck(states(waiting(0), over(1), *pair)) == {0}
