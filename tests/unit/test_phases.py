"""The ring of phases, and what of it travels."""

from __future__ import annotations

import threading
import time

import pytest

from nbmn.communicators import Entry
from nbmn.engine.tracing import spans
from nbmn.phases import KEPT, Phase, Phases, phase, phases


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
    return Entry(sequence, 7, sequence, "allreduce", 8, "float64", "<cell [2]>", 5, begin, end)


def test_the_last_steps_travel():
    talk = [entry(1, 4.0, 6.0), entry(2, 24.0, 26.0), entry(3, 50.0, 51.0)]
    found = spans(steps(3), talk, 1)
    assert [(span.name, span.begin) for span in found] == [
        ("forward", 20),
        ("allreduce", 24.0),
        ("update", 26),
    ]
    assert found[1].where == "cell [2] line 5"
    assert (found[1].link, found[1].number, found[1].nbytes) == ("7", 2, 8)
    assert found[0].where == "f.py line 3"
    assert [span.name for span in spans(steps(3), talk, 10)].count("update") == 3


def test_what_lasts_travels_too():
    lasting = [entry(1, 50.0, None)]
    assert [span.name for span in spans(steps(2), lasting, 1)][-1] == "allreduce"
    open_phase = [*steps(1), Phase("data", 10.0, None, "f.py", 1)]
    assert spans(open_phase, [entry(1, 11.0, 12.0)], 1)[-1].name == "allreduce"


def test_without_phases_the_recorder_is_what_there_is():
    talk = [entry(i, float(i), i + 0.5) for i in range(1, 101)]
    found = spans([], talk, 2)
    assert [span.number for span in found] == list(range(93, 101))
