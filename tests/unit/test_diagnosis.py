"""From what is known of all ranks to what the notebook says."""

from __future__ import annotations

import math
import os

import pytest

from nbmn.cluster.watching import compare_iterations
from nbmn.debug.diagnosis import deadlock, delay, fewer, whereabouts
from nbmn.debug.states import SILENT, Heard, RankState, ended, in_cell, outside
from nbmn.debug.waits import need, stuck
from nbmn.messages import RankInfo
from nbmn.records import Heartbeat, Wait

WORLD = (0, 1, 2, 3)


def waiting(
    rank: int,
    operation: str = "allreduce",
    number: int = 5,
    *,
    link: str = "w",
    members: tuple[int, ...] = WORLD,
    peer: int | None = None,
    tag: int | None = None,
    line: int = 9,
    seconds: float = 1.4,
    changed: float = 10.0,
    confirmed: float = 11.0,
) -> RankState:
    message = operation.startswith(("send", "recv"))
    wait = Wait(7, link, 0 if message else number, members, peer, tag)
    return RankState(
        rank,
        "waiting",
        f"cell [1] line {line}",
        seconds,
        operation,
        wait,
        begun={} if message else {link: number},
        changed=changed,
        confirmed=confirmed,
    )


def over(rank: int, state: str = "done", begun: int = 4, **more: object) -> RankState:
    details = {"changed": 9.0, "confirmed": math.inf, "begun": {"w": begun}, **more}
    return RankState(rank, state, **details)


def raised(rank: int, begun: int = 4, error: str = "ValueError", line: int = 3) -> RankState:
    return over(rank, "failed", begun, where=f"cell [1] line {line}", error=error)


def runs(rank: int, begun: int = 4, line: int = 5, **more: object) -> RankState:
    return RankState(rank, "running", f"cell [1] line {line}", 7.0, begun={"w": begun}, **more)


def states(*given: RankState) -> dict[int, RankState]:
    return {state.rank: state for state in given}


# Who waits for whom.


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


# What is certain.


def text(*given: RankState) -> str:
    return str(deadlock(states(*given)))


def test_a_rank_raised() -> None:
    found = deadlock(states(waiting(0), raised(1), waiting(2), waiting(3, seconds=1.2)))
    assert found is not None
    assert (found.kind, found.culprits, found.ranks) == ("raised", (1,), (0, 2, 3))
    waits = "in allreduce #5 (cell [1] line 9) for 1.4 s"
    assert str(found) == f"rank 1 raised ValueError at cell [1] line 3; ranks 0, 2, 3 wait {waits}"
    assert found.waited() == f"ranks 0, 2, 3 waited {waits}, and nbmn freed them"


def test_several_raised_alike_and_others_elsewhere() -> None:
    said = text(raised(0), raised(1, error="KeyError", line=4), raised(2), waiting(3))
    assert said.startswith(
        "ranks 0, 2 raised ValueError at cell [1] line 3; "
        "rank 1 raised KeyError at cell [1] line 4; rank 3 waits in "
    )


def test_a_failure_counts_more_than_an_early_end() -> None:
    found = deadlock(states(waiting(0), raised(1), over(2), waiting(3)))
    assert found is not None
    assert (found.kind, found.culprits) == ("raised", (1,))


def test_a_failure_that_nobody_waits_for_is_not_the_cause() -> None:
    found = deadlock(
        states(
            waiting(0, members=(0, 1), link="p", number=2),
            over(1, begun=4),
            raised(2, begun=9),
            over(3),
        )
    )
    assert found is not None
    assert (found.kind, found.culprits) == ("left", (1,))


def test_a_rank_left_early_or_never_came() -> None:
    assert text(waiting(0), waiting(1), over(2), waiting(3)).startswith(
        "rank 2 has finished the cell; ranks 0, 1, 3 wait in allreduce #5"
    )
    assert text(waiting(0), over(1), over(2), over(3)).startswith(
        "ranks 1–3 have finished the cell; rank 0 waits in"
    )
    outside = text(waiting(0), over(1, "outside"), waiting(2), waiting(3))
    assert outside.startswith("rank 1 does not run this cell; ranks 0, 2, 3 wait in")
    assert outside.endswith("Run it on all ranks that take part")


def test_different_calls() -> None:
    found = deadlock(states(waiting(0, "bcast"), *(waiting(rank, line=11) for rank in (1, 2, 3))))
    assert found is not None
    assert (found.kind, found.culprits) == ("apart", (0, 1, 2, 3))
    assert str(found).startswith(
        "ranks are in different calls and wait for each other: rank 0 waits in bcast #5 "
        "(cell [1] line 9) for 1.4 s; ranks 1–3 wait in allreduce #5 (cell [1] line 11)"
    )


def test_a_cycle_of_sends() -> None:
    ring = [waiting(rank, "send", peer=(rank + 1) % 4, tag=0) for rank in WORLD]
    found = deadlock(states(*ring))
    assert found is not None
    assert (found.kind, found.culprits) == ("messages", WORLD)
    assert "rank 3 waits in send to rank 0 (cell [1] line 9)" in str(found)
    assert "let every other rank receive first" in str(found)


def test_tags_that_differ() -> None:
    said = text(
        waiting(0, "recv", peer=2, tag=7),
        over(1),
        waiting(2, "send", peer=0, tag=8, line=4),
        over(3),
    )
    assert said.startswith(
        "ranks wait for each other's messages: rank 0 waits in recv from rank 2 with tag 7 "
        "(cell [1] line 9) for 1.4 s; rank 2 waits in send to rank 0 with tag 8 (cell [1] line 4)"
    )


def test_nothing_is_certain_before_all_were_heard_twice() -> None:
    fresh = waiting(2, changed=10.9, confirmed=10.9)
    assert deadlock(states(waiting(0), raised(1), fresh, waiting(3))) is None
    late = over(1, changed=11.0)
    assert deadlock(states(waiting(0), late, waiting(2), waiting(3))) is None
    unheard = over(1, confirmed=0.0)
    assert deadlock(states(waiting(0), unheard, waiting(2), waiting(3))) is None
    # News of one that nobody waits for change nothing.
    others = [waiting(rank, members=(0, 1, 2), link="p") for rank in (0, 2)]
    busy = runs(3, changed=11.5, confirmed=11.4)
    assert deadlock(states(*others, raised(1), busy)) is not None


def test_who_waits_later_is_added() -> None:
    first = deadlock(states(waiting(0), raised(1), runs(2), waiting(3)))
    later = deadlock(states(raised(0), raised(1), waiting(2, line=12), raised(3)))
    assert first is not None
    assert later is not None
    both = first.with_more(later)
    assert both.ranks == (0, 2, 3)
    assert both.cause == first.cause


# What is only slow.


def slow(*given: RankState) -> str:
    return str(delay(states(*given), {0: 100, 1: 101, 2: 102, 3: 103}) or "")


LONG = {"seconds": 4.0}


def test_short_waits_are_not_worth_a_word() -> None:
    assert slow(waiting(0), runs(1), waiting(2), waiting(3)) == ""
    assert slow(*map(runs, WORLD)) == ""
    assert slow(*(waiting(rank, **LONG) for rank in WORLD)) == ""  # it is MPI's turn


def test_a_slow_rank_is_shown_with_its_line() -> None:
    others = [waiting(rank, **LONG) for rank in (0, 2, 3)]
    ending = "; ranks 0, 2, 3 wait in allreduce #5 (cell [1] line 9) for 4.0 s"
    assert slow(runs(1), *others) == "rank 1 runs at cell [1] line 5" + ending
    reads = runs(1, blocked="reads /data/x")
    assert slow(reads, *others) == "rank 1 reads /data/x at cell [1] line 5" + ending


def test_who_does_not_keep_others_waiting_is_not_blamed() -> None:
    alone = waiting(0, "barrier", 1, link="p", members=(0, 1), **LONG)
    assert slow(alone, runs(1), runs(2), over(3)).startswith(
        "rank 1 runs at cell [1] line 5; rank 0"
    )


@pytest.mark.parametrize(
    ("process", "words"),
    [
        ("T", "is stopped by a signal at cell [1] line 4; kill -CONT 101 lets it go on"),
        ("t", "is held by a debugger at cell [1] line 4"),
        ("D", "waits for a device or a file system at cell [1] line 4"),
        ("R", "is silent for 6 s: native code holds the interpreter at cell [1] line 4"),
        ("S", "is silent for 6 s: native code holds the interpreter at cell [1] line 4"),
        ("", "is silent for 6 s; it was last seen at cell [1] line 4"),
    ],
)
def test_silence_is_told_by_what_the_system_says(process: str, words: str) -> None:
    state = RankState(1, "silent", "cell [1] line 4", 6.0, process=process)
    assert whereabouts(state, 101) == words
    assert slow(waiting(0), state, waiting(2)) == f"rank 1 {words}"


def test_who_goes_on_long_after_others_have_finished_is_shown() -> None:
    said = "rank 1 runs at cell [1] line 5; ranks 0, 3 have finished the cell"
    done = {"seconds": 4.0}
    assert slow(over(0, **done), runs(1), raised(2), over(3, **done)) == said
    assert slow(over(0, seconds=1.0), runs(1), runs(2), runs(3)) == ""
    prompt = RankState(1, "debugging", "cell [1] line 4", 60.0)
    assert slow(over(0, **done), prompt, over(2, **done), over(3, **done)) == ""


def test_an_unmatched_message_is_not_taken_for_a_collective() -> None:
    lonely = waiting(0, "recv_obj", peer=1)
    found = deadlock(states(lonely, over(1), over(2), over(3)))
    assert found is not None
    assert found.advice.startswith("What one rank sends, the other must receive")
    ranks = [RankInfo(r, 4, r, os.uname().nodename, 1, "CPU", "") for r in WORLD]
    assert compare_iterations(found, states(lonely, over(1)), ranks, 0.0) is found


def test_where_a_rank_is_that_does_not_answer() -> None:
    assert whereabouts(runs(1)) == "runs at cell [1] line 5"
    assert whereabouts(waiting(1, seconds=4.2)) == "is in allreduce #5 (cell [1] line 9) for 4 s"


def test_a_rank_at_the_debuggers_prompt() -> None:
    prompt = RankState(1, "debugging", "cell [1] line 4", 60.0)
    said = slow(waiting(0, **LONG), prompt, waiting(2, **LONG), waiting(3, **LONG))
    assert said.startswith("rank 1 is at the debugger's prompt at cell [1] line 4; ranks 0, 2, 3")


# One fewer iteration.


def test_fewer_iterations() -> None:
    line = "allreduce at cell [1] line 9"
    counts = {0: 10, 1: 10, 2: 9}
    assert fewer([2], [0, 1], counts, line) == (
        f"rank 2 called {line} at least once less than ranks 0, 1: "
        "fewer iterations, or a branch not taken"
    )
    assert fewer([2], [0, 1], {0: 10, 1: 10, 2: 0}, line) == (
        f"rank 2 did not call {line}: all ranks must"
    )
    assert fewer([2], [0, 1], {0: 10, 1: 9, 2: 9}, line) == ""  # not clear
    assert fewer([2], [0, 1], {0: 10, 1: 10}, line) == ""  # not known
    assert fewer([2], [0, 1], {0: 10, 1: 10, 2: 11}, line) == ""


# From heartbeats to states.


def beat(run: str = "r", state: str = "waiting", sequence: int = 7) -> Heartbeat:
    wait = Wait(sequence, "w", 5, WORLD) if state == "waiting" else None
    return Heartbeat(1, run, 0.0, state, "allreduce", "line", 2.0, "", wait, {"w": 5})


def test_heartbeats_that_say_the_same_confirm_each_other() -> None:
    heard = Heard(beat(), 10.0, since=10.0)
    state = in_cell(1, "r", heard, 10.1)
    assert (state.changed, state.confirmed) == (10.0, 0.0)
    heard = heard.then(beat(), 10.5).then(beat(), 11.0)
    state = in_cell(1, "r", heard, 11.25)
    assert (state.changed, state.confirmed, state.seconds) == (10.0, 10.5, 2.25)
    assert state.confirmed > state.changed
    heard = heard.then(beat(sequence=8), 11.5)
    assert in_cell(1, "r", heard, 11.5).changed == 11.5


def test_a_rank_that_was_not_heard_in_the_cell_runs_or_is_silent() -> None:
    assert in_cell(1, "r", None, 10.0).state == "running"
    old = Heard(beat("other"), 10.0, since=10.0)
    assert in_cell(1, "r", old, 10.1).state == "running"
    state = in_cell(1, "r", old, 10.1 + SILENT)
    assert (state.state, state.where, state.wait) == ("silent", "", None)
    state = in_cell(1, "r", Heard(beat(), 10.0), 14.0)
    assert (state.state, state.where, state.seconds) == ("silent", "line", 4.0)


def test_a_rank_that_has_ended_is_certain_once_it_was_heard_after() -> None:
    before = ended(1, "r", "", "", 10.0, Heard(beat(), 10.2), 10.2)
    assert (before.state, before.confirmed) == ("done", 0.0)
    after = ended(1, "r", "E", "line", 10.0, Heard(beat("", "idle"), 10.2), 10.2)
    assert (after.state, after.error, after.where) == ("failed", "E", "line")
    assert after.confirmed > after.changed
    assert outside(1, None).confirmed == 0.0
    idle = outside(1, Heard(beat("", "idle"), 10.2, since=9.0))
    assert (idle.state, idle.changed, idle.confirmed) == ("outside", 9.0, math.inf)
