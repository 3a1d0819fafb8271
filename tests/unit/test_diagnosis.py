"""From what is known of all ranks to what the notebook says."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
from rank_states import WORLD, over, raised, runs, states, waiting

from nbmn.cluster.watching import compare_iterations
from nbmn.debug.diagnosis import deadlock, delay, fewer, whereabouts
from nbmn.debug.states import RankState
from nbmn.debug.waits import need
from nbmn.messages import RankInfo

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


def test_communicators_are_told_apart() -> None:
    def wait(rank: int, link: str, made: int, members: tuple[int, ...] = WORLD) -> RankState:
        state = waiting(rank, "barrier", 1, link=link, members=members)
        assert state.wait is not None
        return replace(state, wait=replace(state.wait, made=made))

    said = text(wait(0, "a", 2), wait(1, "b", 3), wait(2, "a", 2), wait(3, "b", 3))
    assert "ranks 0, 2 wait in barrier #1 of communicator 2 of ranks 0–3 (cell [1] line 9)" in said
    assert "ranks 1, 3 wait in barrier #1 of communicator 3 of ranks 0–3 (" in said
    said = text(wait(0, "a", 2, (0, 1)), wait(1, "b", 2), over(2), over(3))
    assert "rank 0 waits in barrier #1 of ranks 0, 1 (" in said
    assert "rank 1 waits in barrier #1 of ranks 0–3 (" in said
    assert " of " not in text(wait(0, "a", 2), over(1), over(2), over(3)).partition("barrier")[2]


# Threads beside the main one.


def beside(state: RankState, *threads: RankState) -> RankState:
    """A rank of which other threads live."""
    named = tuple(replace(thread, thread=f"T{i}") for i, thread in enumerate(threads))
    return replace(state, threads=named)


def joining(rank: int, thread: RankState) -> RankState:
    return beside(runs(rank), replace(thread, joined=True))


def test_nothing_is_certain_while_a_thread_may_call_what_is_missing() -> None:
    ahead = beside(waiting(0, "barrier", 1, link="a"), runs(0))
    others = [waiting(rank, "barrier", 1, link="b") for rank in (1, 2, 3)]
    assert deadlock(states(ahead, *others)) is None
    assert deadlock(states(replace(ahead, threads=()), *others)) is not None
    receives = beside(over(1), runs(1))
    lonely = waiting(0, "send", peer=1, tag=0)
    assert deadlock(states(lonely, receives, over(2), over(3))) is None
    assert deadlock(states(lonely, over(1), over(2), over(3))) is not None
    # Not even what such a thread waits for, if that may come.
    waits = beside(over(1), waiting(1, "recv", peer=2, tag=0))
    assert deadlock(states(lonely, waits, runs(2), over(3))) is None
    assert deadlock(states(lonely, waits, over(2), over(3))) is not None


def test_a_thread_of_a_rank_that_failed_helps_only_if_it_talks() -> None:
    reads_ahead = beside(raised(1), runs(1))
    others = [waiting(rank) for rank in (0, 2, 3)]
    found = deadlock(states(*others, reads_ahead))
    assert found is not None
    assert (found.kind, found.culprits) == ("raised", (1,))
    talks = beside(raised(1), runs(1, talks=True))
    assert deadlock(states(*others, talks)) is None


def test_a_thread_has_come_where_its_rank_is_needed() -> None:
    there = beside(runs(1), waiting(1))
    assert need(waiting(0), states(waiting(0), there)).ranks == frozenset()
    message = beside(runs(1), waiting(1, "recv", peer=0, tag=3))
    sends = waiting(0, "send", peer=1, tag=3)
    assert need(sends, states(sends, message)).ranks == frozenset()


def test_a_thread_that_waits_for_ever_and_that_the_main_one_waits_for() -> None:
    found = deadlock(states(joining(0, waiting(0, "barrier")), over(1), over(2), over(3)))
    assert found is not None
    assert (found.kind, found.culprits, found.ranks) == ("left", (1, 2, 3), (0,))
    assert str(found) == (
        "ranks 1–3 have finished the cell; "
        "thread T0 of rank 0 waits in barrier #5 (cell [1] line 9) for 1.4 s"
    )
    # It may wait for a cell to come, if the main one goes on.
    server = beside(runs(0), waiting(0, "recv", peer=1, tag=0))
    assert deadlock(states(server, over(1), over(2), over(3))) is None
    # Others wait for ever with it.
    both = [joining(0, waiting(0, "barrier")), waiting(1, "barrier"), waiting(2, "barrier")]
    found = deadlock(states(*both, over(3)))
    assert found is not None
    assert (found.culprits, found.ranks) == ((3,), (0, 1, 2))


def test_what_threads_wait_for_long_is_shown() -> None:
    one = beside(waiting(0, "barrier", 1, link="a", seconds=4.0), runs(0, line=7))
    others = [waiting(rank, "barrier", 1, link="b", seconds=4.0) for rank in (1, 2, 3)]
    assert slow(one, *others).startswith("thread T0 of rank 0 runs at cell [1] line 7; ")
    two = beside(runs(0), waiting(0, "barrier", seconds=4.0))
    done = [over(rank, seconds=4.0) for rank in (1, 2, 3)]
    assert slow(two, *done) == (
        "rank 0 runs at cell [1] line 5, its thread T0 waits in barrier #5 (cell [1] line 9) for "
        "4 s; ranks 1–3 have finished the cell"
    )


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
