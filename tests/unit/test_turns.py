"""Which ranks will run another cell yet, while one waits."""

from __future__ import annotations

from nbmn.cluster.watching import Turn, look, to_come
from nbmn.debug.diagnosis import deadlock
from nbmn.debug.states import Heard
from nbmn.messages import RankInfo
from nbmn.records import Heartbeat, Wait

RANKS = [RankInfo(rank, 4, rank, "elsewhere", 0, "CPU", "MPI") for rank in range(4)]
PAIR = Turn("a", (0, 1), (), begun=True)


def test_a_queued_cell_is_to_come() -> None:
    runs, waits = Turn("b", (2, 3), (), True), Turn("c", (2, 3), ("b",), False)
    assert to_come([PAIR, runs, waits], "a") == {2: "c", 3: "c"}
    assert to_come([PAIR, runs, waits], "b") == {}
    assert to_come([PAIR, Turn("c", (2, 3), (), False)], "a") == {2: "c", 3: "c"}
    assert to_come([PAIR], "a") == {}


def test_a_cell_that_comes_after_this_one_helps_nobody() -> None:
    after = Turn("b", (1, 2), ("a",), False)
    assert to_come([PAIR, after], "a") == {}
    assert to_come([PAIR, after, Turn("c", (2, 3), ("b",), False)], "a") == {}


def test_a_cell_may_wait_for_ranks_whose_cell_is_queued() -> None:
    wait = Wait(7, "w", 5, (0, 1, 2, 3))
    stuck = [Heartbeat(r, "a", 0.0, "waiting", "allreduce", wait=wait) for r in (0, 1)]
    idle = [Heartbeat(r, "", 0.0, "idle") for r in (2, 3)]
    beats = {beat.rank: Heard(beat, 11.0, 10.5, 9.0) for beat in (*stuck, *idle)}
    running = {0: "a", 1: "a"}
    alone = look(RANKS, beats, running, {}, "a", 11.1, None)
    assert (found := deadlock(alone)) is not None
    assert (found.kind, found.culprits) == ("outside", (2, 3))
    assert deadlock(look(RANKS, beats, running | {2: "c", 3: "c"}, {}, "a", 11.1, None)) is None
