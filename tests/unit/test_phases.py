"""The ring of phases, and what of it travels."""

from __future__ import annotations

import threading
import time

import pytest

from nbmn.communicators import Entry
from nbmn.engine.tracing import beginning, last_run, spans
from nbmn.phases import KEPT, Phase, Phases, Run, phase, phases


def mine(since):
    """Phases of this module's tests that began after a time."""
    return [each for each in phases().all() if each.begin >= since]


def test_phases_with_their_line():
    began = time.monotonic()
    with phase("data"), phase("inner"):
        lasting = mine(began)
    assert [(each.name, each.end) for each in lasting] == [("data", None), ("inner", None)]
    inner, data = mine(began)
    assert (inner.name, data.name) == ("inner", "data")
    assert began <= data.begin <= inner.begin <= inner.end <= data.end <= time.monotonic()
    assert data.file == __file__
    with open(__file__) as file:
        assert 'with phase("data")' in file.read().splitlines()[data.line - 1]


def test_a_phase_that_raises_is_over():
    began = time.monotonic()
    with pytest.raises(ValueError, match="x"), phase("data"):
        raise ValueError("x")
    assert [each.end is None for each in mine(began)] == [False]


def test_what_an_interrupt_left_open_is_over_with_its_cell():
    began = time.monotonic()
    phase("data").__enter__()
    assert [each.end for each in mine(began)] == [None]
    phases().close_all()
    assert mine(began) == []


def test_other_threads_are_not_recorded():
    began = time.monotonic()

    def work():
        with phase("data"):
            pass

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert mine(began) == []


def test_between_updates_of_a_trainer():
    ring = Phases()
    ring.mark("data")
    ring.reach()
    assert ring.all() == ()  # no trainer runs
    with ring.trainer():
        ring.reach()
        ring.mark("extensions")
        ring.reach()
        ring.reach()
        ring.mark("data")
    ring.reach()
    assert [each.name for each in ring.all()] == ["data", "extensions"]


def test_the_ring_is_bounded():
    ring = Phases()
    with ring.trainer():
        for _ in range(KEPT + 10):
            ring.mark("data")
            ring.reach()
    assert len(ring.all()) == KEPT


def test_a_phase_costs_microseconds():
    began = time.perf_counter()
    for _ in range(10_000):
        with phase("cheap"):
            pass
    assert (time.perf_counter() - began) / 10_000 < 50e-6  # about 1.5 µs on an idle machine


def steps(count):
    found = []
    for i in range(count):
        found += [Phase("forward", 10 * i, 10 * i + 4, "f.py", 3)]
        found += [Phase("update", 10 * i + 6, 10 * i + 9, "f.py", 4)]
    return found


def entry(sequence, begin, end):
    return Entry(
        sequence, 7, sequence, "allreduce", 8, "float64", "<cell [2]>", 5, begin, end, earlier=1
    )


def told(marked, talk, count, runs=(), reports=()):
    """What travels, and how many steps it is said to be."""
    run = last_run(runs, marked, talk)
    since, ends = beginning(run, marked, reports, talk, count)
    return spans(marked, talk, since, run.end), len(ends)


def test_the_last_steps_travel():
    talk = [entry(1, 4.0, 6.0), entry(2, 24.0, 26.0)]
    found, number = told(steps(3), talk, 1)
    assert [(span.name, span.begin) for span in found] == [
        ("forward", 20),
        ("allreduce", 24.0),
        ("update", 26),
    ]
    assert number == 1
    assert found[1].where == "cell [2] line 5"
    assert (found[1].link, found[1].number, found[1].nth, found[1].nbytes) == ("7", 2, 1, 8)
    assert found[0].where == "f.py line 3"
    found, number = told(steps(3), talk, 10)
    assert ([span.name for span in found].count("update"), number) == (3, 3)


def test_what_lasts_travels_too():
    lasting = [entry(1, 50.0, None)]
    assert [span.name for span in told(steps(2), lasting, 1)[0]][-1] == "allreduce"
    open_phase = [*steps(1), Phase("data", 10.0, None, "f.py", 1)]
    assert told(open_phase, [entry(1, 11.0, 12.0)], 1)[0][-1].name == "allreduce"


def test_a_phase_around_the_steps_does_not_bring_back_the_earlier_ones():
    around = [*steps(3), Phase("training", 0.0, None, "f.py", 1)]
    found, _ = told(around, [], 1)
    assert [(span.name, span.begin) for span in found] == [
        ("training", 19),
        ("forward", 20),
        ("update", 26),
    ]


RUNS = [Run("[1]#1", 0.0, True), Run("[2]#2", 25.0, True), Run("%mn_diff x#3", 60.0, False)]


def test_earlier_cells_and_comparisons_are_left_out():
    talk = [entry(1, 4.0, 6.0), entry(2, 24.0, 24.5), entry(3, 40.0, 41.0), entry(4, 61.0, 62.0)]
    marked = [*steps(2), Phase("data", 30.0, 38.0, "f.py", 1)]
    found, number = told(marked, talk, 10, RUNS)
    assert [(span.name, span.begin) for span in found] == [("data", 30.0), ("allreduce", 40.0)]
    assert number == 0
    assert last_run(RUNS, marked, talk).name == "[2]#2"


def test_a_cell_that_did_nothing_does_not_hide_the_one_before():
    runs = [*RUNS, Run("[4]#4", 70.0, True)]
    assert last_run(runs, [], [entry(3, 40.0, 41.0), entry(4, 61.0, 62.0)]).name == "[2]#2"
    assert told([], [entry(4, 61.0, 62.0)], 10, runs) == ((), 0)


def test_a_report_ends_a_step_where_no_update_is_marked():
    talk = [entry(i, 30.0 + i, 30.5 + i) for i in range(1, 5)]
    reports = [3.0, 31.7, 32.7, 33.7, 34.7]
    found, number = told([], talk, 2, RUNS, reports)
    assert ([span.number for span in found], number) == ([3, 4], 2)
    assert told([], talk, 10, RUNS, reports)[1] == 4
    updates = [Phase("update", 34.5, 34.6, "f.py", 4)]
    assert told(updates, talk, 10, RUNS, reports)[1] == 1


def test_without_steps_the_whole_cell_travels_as_far_as_it_is_recorded():
    talk = [entry(i, float(i), i + 0.5) for i in range(1, 101)]
    assert len(told([], talk, 2)[0]) == 100
    marked = [Phase("data", i + 0.6, i + 0.9, "f.py", 1) for i in range(100)]
    found, _ = told(marked, talk[60:], 2)
    assert found[0].begin == 61.0


def test_runs_and_reports_are_remembered():
    ring = Phases()
    began = time.monotonic()
    ring.begin_run("[1]#1")
    ring.report_step()
    ring.begin_run("%mn_push x#2", traced=False)
    assert [(run.name, run.traced) for run in ring.runs()] == [
        ("[1]#1", True),
        ("%mn_push x#2", False),
    ]
    (reported,) = ring.reports()
    assert began <= ring.runs()[0].begin <= reported <= ring.runs()[1].begin
