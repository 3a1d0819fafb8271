"""A rank's line to the notebook."""

from __future__ import annotations

import math
import threading
import time

import chainer
import numpy as np
import pytest

from nbmn.cluster.listener import Listener
from nbmn.engine import report
from nbmn.engine.reporter import Reporter, reporter
from nbmn.records import Busy, Frame, Heartbeat, Record, RunEnded, RunStarted, Stack, Step, Wait


class Heard:
    """A listener, and what it has heard."""

    def __init__(self) -> None:
        self.listener = Listener()
        self.records: list[Record] = []
        self._news = threading.Condition()
        self.listener.subscribe(self._take)

    def _take(self, records: list[Record]) -> None:
        with self._news:
            self.records += records
            self._news.notify_all()

    def until(self, kind: type, count: int = 1, seconds: float = 10) -> list:
        with self._news:
            found = lambda: [r for r in self.records if isinstance(r, kind)]  # noqa: E731
            assert self._news.wait_for(lambda: len(found()) >= count, seconds), self.records
            return found()


@pytest.fixture
def heard():
    heard = Heard()
    yield heard
    heard.listener.close()


def _connected(heard: Heard) -> Reporter:
    line = Reporter()
    line.connect(3, heard.listener.endpoint, expect_pings=False)
    return line


def test_without_a_notebook_a_report_costs_nothing() -> None:
    assert not reporter().connected
    started = time.perf_counter()
    for step in range(10_000):
        report(loss=step, samples=1)
    assert (time.perf_counter() - started) / 10_000 < 20e-6
    assert not reporter()._outbox


def test_steps_arrive_in_order_and_the_last_at_once(heard: Heard) -> None:
    line = _connected(heard)
    line.begin("[1]#1")
    for step in range(1000):
        line.step({"loss": step}, samples=4)
    assert line.has_reported
    line.end("done")
    began = time.monotonic()
    (end,) = heard.until(RunEnded)
    assert time.monotonic() - began < 1
    assert (end.rank, end.run, end.status) == (3, "[1]#1", "done")
    steps = heard.until(Step, 1000)
    assert [s.iteration for s in steps] == list(range(1, 1001))
    assert [s.values["loss"] for s in steps] == list(range(1000))
    assert len(heard.until(RunStarted)) == 1
    assert not line.has_reported


def test_values_are_read_when_reported(heard: Heard) -> None:
    line = _connected(heard)
    line.begin("r")
    buffer = np.zeros(())
    variable = chainer.Variable(np.array(2.5, np.float32))
    for step in range(3):
        buffer[...] = step
        line.step({"a": buffer, "v": variable, "one": np.ones((1, 1), "f"), "none": None})
    # A variable would keep its whole graph alive.
    queued = [step for step in line._outbox if isinstance(step, tuple)]
    held = [value for step in queued for value in step[3].values()]
    assert not any(isinstance(value, chainer.Variable) for value in held)
    line.end("done")
    steps = heard.until(Step, 3)
    assert [s.values["a"] for s in steps] == [0, 1, 2]
    assert steps[0].values["v"] == 2.5
    assert steps[0].values["one"] == 1
    assert math.isnan(steps[0].values["none"])


def test_outside_a_cell_nothing_is_sent(heard: Heard) -> None:
    line = _connected(heard)
    line.step({"loss": 1})
    line.begin("r")
    line.end("done")
    line.begin("s")
    line.step({"loss": 2})
    line.end("done")
    (step,) = heard.until(Step)
    assert step.run == "s"
    assert [e.run for e in heard.until(RunEnded)] == ["s"]


def test_wrong_values_and_counts_fail_at_the_users_line() -> None:
    line = Reporter()
    line._thread = threading.current_thread()  # as if connected; nothing is sent
    line.begin("r")
    with pytest.raises(ValueError, match="invalid literal"):
        line.step({}, samples="many")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="name must be one number, not 'text'"):
        line.step({"name": "text"})
    with pytest.raises(TypeError, match=r"grid must be one number, not an array of shape \(2, 2\)"):
        line.step({"grid": np.ones((2, 2))})


WAIT = Wait(7, "5", 3, (0, 1))


class Seen:
    """What a lookout may say."""

    wait: tuple[str, str, float, Wait] | None = None

    def waits(self) -> tuple[str, str, float, Wait] | None:
        return self.wait

    def begun(self) -> dict[str, int]:
        return {"5": 3}

    def threads(self) -> tuple[Busy, ...]:
        return (Busy("T", "cell [1] line 2"),)

    def takes_interrupts(self) -> bool:
        return True

    def interrupt_threads(self, main: bool = False) -> None:
        pass

    def line(self) -> str:
        return "cell [1] line 1"

    def blocked(self) -> str:
        return "sleeps"

    def stack(self) -> tuple[Frame, ...]:
        return (Frame("cell [1] line 1", "<module>", "x"),)


def test_heartbeat_says_what_goes_on() -> None:
    line = Reporter()
    assert line.heartbeat().state == "idle"
    line.begin("r")
    assert (line.heartbeat().state, line.heartbeat().run) == ("running", "r")
    line.lookout = Seen()
    assert line.heartbeat().where == "cell [1] line 1"
    assert line.heartbeat().threads == Seen().threads()
    assert line.heartbeat().blocked == "sleeps"
    line.lookout.wait = ("allreduce", "cell [1] line 2", 2.0, WAIT)
    beat = line.heartbeat()
    assert (beat.wait, beat.begun) == (WAIT, {"5": 3})
    assert (beat.state, beat.operation, beat.where, beat.seconds) == (
        "waiting",
        "allreduce",
        "cell [1] line 2",
        2.0,
    )
    line.end("done")
    assert line.heartbeat().state == "idle"


def test_an_interrupt_reaches_the_run_it_names(heard: Heard) -> None:
    line = _connected(heard)
    heard.until(object, 1)  # it is connected
    line.begin("r")
    with pytest.raises(KeyboardInterrupt):
        _wait_for_interrupt(heard, "r")
    line.end("interrupted")


def test_an_interrupt_aimed_at_an_ended_run_does_nothing(heard: Heard) -> None:
    line = _connected(heard)
    heard.until(object, 1)
    line.begin("old")
    line.end("done")
    line.begin("new")
    heard.listener.interrupt([3], "old")
    while "old" not in line._cancelled:  # it was read, in the thread
        time.sleep(0.01)
    line.end("done")


def test_an_interrupt_that_comes_before_its_run(heard: Heard) -> None:
    line = _connected(heard)
    heard.until(object, 1)
    heard.listener.interrupt([3], "next")
    while "next" not in line._cancelled:
        time.sleep(0.01)
    with pytest.raises(KeyboardInterrupt):
        line.begin("next")
    line.end("interrupted")
    line.begin("other")


def _wait_for_interrupt(heard: Heard, run: str) -> None:
    heard.listener.interrupt([3], run)
    for _ in range(600):  # the deadline, on a machine that is busy
        time.sleep(0.1)


def test_strangers_are_not_let_in(heard: Heard) -> None:
    import zmq

    public, secret = zmq.curve_keypair()
    stranger = zmq.Context.instance().socket(zmq.DEALER)
    stranger.setsockopt(zmq.LINGER, 0)
    stranger.curve_serverkey = heard.listener.endpoint.server_key
    stranger.curve_publickey, stranger.curve_secretkey = public, secret
    monitor = stranger.get_monitor_socket(zmq.EVENT_HANDSHAKE_FAILED_AUTH)
    stranger.connect(heard.listener.endpoint.url)
    stranger.send(b"[]")
    assert monitor.poll(10_000)
    stranger.disable_monitor()
    stranger.close()
    assert heard.records == []


def test_malformed_messages_are_counted_and_dropped(heard: Heard) -> None:
    for message in ([b"3", b"nonsense"], [b"3"], [b"3", b"[]", b"more"]):
        heard.listener._receive(message)
    assert heard.listener.malformed == 3


def test_a_subscriber_that_fails_does_not_end_the_listening(heard: Heard) -> None:
    def fail(records: list[Record]) -> None:
        raise RuntimeError("a board is broken")

    heard.listener.subscribe(fail)
    line = _connected(heard)
    line.begin("r")
    line.step({"loss": 1})
    line.end("done")
    heard.until(RunEnded)
    heard.listener.unsubscribe(fail)


def test_a_rank_answers_where_it_is_and_boards_do_not_hear_of_it(heard: Heard) -> None:
    line = _connected(heard)
    line.lookout = Seen()
    line.begin("r")
    heard.until(object, 1)
    heard.listener.ask_where([3])
    deadline = time.monotonic() + 10
    while 3 not in heard.listener.stacks:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    stack = heard.listener.stacks[3]
    assert (stack.run, stack.frames, stack.beat.state) == ("r", Seen().stack(), "running")
    assert not any(isinstance(record, Stack) for record in heard.records)


def test_heartbeats_come_often_enough_to_decide_soon(heard: Heard) -> None:
    _connected(heard)
    began = time.monotonic()
    heard.until(Heartbeat, 4)
    assert time.monotonic() - began < 3


def test_a_lookout_that_fails_does_not_make_the_rank_deaf(heard: Heard) -> None:
    class Broken:
        def __getattr__(self, name: str):
            raise RuntimeError(name)

    line = Reporter()
    line.lookout = Broken()
    line.connect(3, heard.listener.endpoint, expect_pings=False)
    line.begin("r")
    heard.until(Heartbeat, 2)
    with pytest.raises(KeyboardInterrupt):
        _wait_for_interrupt(heard, "r")
    line.end("interrupted")
