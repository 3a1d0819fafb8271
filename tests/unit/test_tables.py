"""Tables of ranks."""

from __future__ import annotations

from nbmn.cluster.tables import StartProgress, doing, ranks_table, start_table, status_table
from nbmn.debug.states import Heard
from nbmn.messages import RankInfo
from nbmn.records import Heartbeat

INFO = RankInfo(0, 2, 0, "node<1>", 123, "CPU", "MPICH 5.0.2")


def _beat(run: str, state: str, age: float = 0.5, **details: object) -> Heard:
    return Heard(Heartbeat(0, run, 0.0, state, **details), 100.0 - age)


def test_what_a_rank_does() -> None:
    run = "[7]#3"
    assert doing(None, None, 100.0) == "idle"
    assert doing(None, run, 100.0) == "runs cell [7]"
    # A beat from before the cell, or after it: what the notebook knows counts.
    assert doing(_beat("", "idle"), run, 100.0) == "runs cell [7]"
    assert doing(_beat(run, "running"), None, 100.0) == "idle"
    assert doing(_beat(run, "running", seconds=2.0), run, 100.0) == "runs cell [7] for 2.5 s"
    waiting = _beat(run, "waiting", operation="allreduce", where="cell [7] line 3", seconds=1.0)
    assert doing(waiting, run, 100.0) == "waits in allreduce at cell [7] line 3 for 1.5 s"
    debugged = _beat(run, "debugging", where="cell [7] line 3", seconds=1.0)
    assert doing(debugged, run, 100.0) == "is at a debugger's prompt, at cell [7] line 3, for 1.5 s"
    assert doing(_beat(run, "running", age=9), run, 100.0) == "silent for 9 s (was running)"


def test_tables_are_text_and_markup() -> None:
    bundle = status_table("2 ranks", [INFO], {}, {}, 100.0)
    assert bundle.text.splitlines() == [
        "2 ranks",
        "rank  host     device  pid  now",
        "0     node<1>  CPU     123  idle",
    ]
    assert "node&lt;1&gt;" in bundle.html
    assert "node<1>" not in bundle.html
    assert "next: <b>" not in ranks_table("t", [INFO], "next: <b>").html


def test_a_start_with_few_and_with_many_ranks() -> None:
    few = start_table(StartProgress(3, frozenset({0, 1}), frozenset({0}), "loading ranks")).text
    assert few.splitlines() == [
        "loading ranks — 1 of 3 ready",
        "rank  state",
        "0     ready",
        "1     loaded; device and communicator …",
        "2     launched; loading …",
    ]
    many = start_table(StartProgress(64, frozenset(range(40)), frozenset(range(9)), "x")).text
    assert len(many.splitlines()) == 4
    assert "40" in many
