"""From heartbeats to states of ranks."""

from __future__ import annotations

import math
from dataclasses import replace

from rank_states import WORLD

from nbmn.debug.states import SILENT, Heard, ended, in_cell, outside
from nbmn.records import Busy, Heartbeat, Wait


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


def test_threads_are_told_in_the_cell_and_after_it() -> None:
    threads = (Busy("T", "l", "barrier", 1.0, Wait(9, "w", 5, WORLD), True), Busy("U", "m"))
    first = replace(beat(), threads=threads)
    heard = Heard(first, 10.0, since=10.0).then(first, 10.5)
    told = in_cell(1, "r", heard, 10.75).threads
    assert [(t.thread, t.state, t.where, t.joined) for t in told] == [
        ("T", "waiting", "l", True),
        ("U", "running", "m", False),
    ]
    assert (told[0].seconds, told[0].changed, told[0].confirmed) == (1.25, 10.0, 10.0)
    assert heard.then(replace(first, threads=threads[:1]), 11.0).since == 11.0
    idle = replace(beat("", "idle"), threads=threads)
    for state in (
        ended(1, "r", "", "", 10.0, Heard(idle, 10.2), 10.2),
        outside(1, Heard(idle, 10.2)),
    ):
        assert [(t.thread, t.state) for t in state.threads] == [("T", "waiting"), ("U", "running")]


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
