"""The line of a terminal that is written over while a cell runs."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest

from nbmn.cluster import live_line as module
from nbmn.cluster.live_line import LiveLine, live_line
from nbmn.cluster.output import RankOutput
from nbmn.cluster.terminal import settle
from nbmn.magics.boards import RunArea
from nbmn.records import RunEnded, Step


@pytest.fixture
def clock(monkeypatch):
    now = SimpleNamespace(time=100.0)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now.time))
    monkeypatch.setenv("COLUMNS", "20")
    return now


def test_a_line_takes_the_place_of_the_last(clock):
    stream = io.StringIO("")
    line = LiveLine(stream)
    line.show(lambda: "iteration 1 of 100")
    assert settle(stream.getvalue()) == "iteration 1 of 100"
    clock.time += 0.9
    line.show(lambda: pytest.fail("this soon nothing is asked"))
    clock.time += 0.1
    line.show(lambda: "done")
    assert settle(stream.getvalue()) == "done"
    clock.time += 1
    line.show(lambda: "x" * 50)
    assert settle(stream.getvalue()) == "x" * 19
    clock.time += 1
    line.show(lambda: "ValueError: a\n  b")
    assert settle(stream.getvalue()) == "ValueError: a b"
    line.close()
    assert settle(stream.getvalue()) == ""
    assert "\n" not in stream.getvalue()


def test_it_makes_room_and_comes_back(clock):
    stream = io.StringIO()
    line = LiveLine(stream)
    line.show(lambda: "iteration 1")
    line.erase()
    stream.write("rank 1 is slow\n")
    line.show(lambda: "iteration 2")
    assert settle(stream.getvalue()) == "rank 1 is slow\niteration 2"
    line.erase()
    written = stream.getvalue()
    line.erase()
    assert stream.getvalue() == written


def test_closed_it_writes_nothing_more(clock):
    stream = io.StringIO()
    line = LiveLine(stream)
    line.close()
    line.show(lambda: pytest.fail("nothing is asked"))
    assert stream.getvalue() == ""


def test_there_is_none_without_a_terminal(monkeypatch):
    monkeypatch.setattr("sys.stdout", io.StringIO())
    assert live_line() is None


def test_a_run_in_a_terminal(clock, capsys, monkeypatch):
    """From the first step on there is a line, until the end or until it is left alone."""
    monkeypatch.setenv("COLUMNS", "200")
    subscribers = []
    listener = SimpleNamespace(subscribe=subscribers.append, unsubscribe=subscribers.remove)
    session = SimpleNamespace(listener=listener, size=2, fates=dict)
    stream = io.StringIO()
    output = SimpleNamespace(
        update=lambda outputs, notice: stream.write(f"{notice}\n" if notice else ""),
        finish=lambda outputs, status, notice: stream.write("rank 0:\nhello\n"),
    )
    area = RunArea(session, "r", (0, 1), output, LiveLine(stream))
    area.update([])
    assert stream.getvalue() == ""
    subscribers[0]([Step(rank, "r", 10.0, 7, {"loss": 0.25}) for rank in (0, 1)])
    area.update([])
    shown = settle(stream.getvalue())
    assert shown.startswith("training: running, iteration 7, ")
    assert shown.endswith("loss 0.2500")
    area.update([], "rank 1 is slow")
    assert settle(stream.getvalue()) == f"rank 1 is slow\n{shown}"
    subscribers[0]([RunEnded(rank, "r", 12.0, "done") for rank in (0, 1)])
    area.finish([RankOutput(0)], "done", [0, 1])
    assert settle(stream.getvalue()) == "rank 1 is slow\nrank 0:\nhello\n"
    assert capsys.readouterr().out.startswith("training: done, iteration 7, ")
