"""Waiting for what ranks answer together, when one fails, or is stuck, while others wait for it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from nbmn.cluster import together
from nbmn.cluster.errors import RanksFailed, RanksInterrupted, RanksStuck
from nbmn.debug.diagnosis import Diagnosis
from nbmn.debug.states import RankState
from nbmn.messages import CellError


class Answering:
    """A rank's call; its answer comes at once, or when it is interrupted."""

    def __init__(self, answer: Any, at_once: bool = True) -> None:
        self.event = threading.Event()
        self._answer = answer
        if at_once:
            self.event.set()

    def wait(self, seconds: float) -> bool:
        return self.event.wait(seconds)

    def done(self) -> bool:
        return self.event.is_set()

    def result(self) -> Any:
        return self._answer


class Session:
    """Explains what it was told to, once it has looked at the ranks twice."""

    def __init__(self, calls: dict[int, Answering], found: Diagnosis | None = None) -> None:
        self.listener = self
        self.ranks: tuple[()] = ()
        self.beats: dict[int, Any] = {}
        self.stacks = None
        self.calls = calls
        self.interrupted: list[int] = []
        self.distrusted = False
        self._found = found
        self._looks = 0

    def new_run(self, title: str) -> str:
        return f"{title}#1"

    @contextlib.contextmanager
    def idle(self, ranks: Any) -> Iterator[None]:
        yield

    def running(self) -> dict[int, Any]:
        return {}

    def explain(self, states: Any, since: float) -> Diagnosis | None:
        self._looks += 1
        return self._found if self._looks > 1 else None

    def interrupt(self, ranks: Any, run: str) -> None:
        assert run == "push#1"
        self.interrupted += ranks
        for rank in self.interrupted:
            self.calls[rank].event.set()

    free = interrupt  # what it raises, and where, is tested on ranks

    def require_alive(self) -> None:
        pass

    def distrust(self) -> None:
        self.distrusted = True


def outcome(session: Any) -> together.Outcome:
    return together.together(session, "push", sorted(session.calls), lambda run: session.calls)


STOPPED = CellError("KeyboardInterrupt", ""), None


def waiting(*ranks: int) -> tuple[RankState, ...]:
    return tuple(RankState(r, "waiting", "%mn_push line 1", 1.0, "bcast") for r in ranks)


def test_values_come_by_rank() -> None:
    calls = {rank: Answering((None, [rank] if rank else None)) for rank in (2, 0, 1)}
    session = Session(calls)
    assert outcome(session).require() == {1: [1], 2: [2]}
    assert not session.distrusted


def test_ranks_that_wait_for_one_that_failed_are_freed() -> None:
    calls = {
        0: Answering(STOPPED, at_once=False),
        1: Answering((CellError("MemoryError", "too large"), None)),
        2: Answering(STOPPED, at_once=False),
    }
    session = Session(calls, Diagnosis("raised", (1,), waiting(0, 2), "rank 1 raised MemoryError"))
    with pytest.raises(RanksFailed) as caught:
        outcome(session).require()
    assert str(caught.value) == (
        "rank 1 raised MemoryError: too large\n"
        "ranks 0, 2 waited in bcast (%mn_push line 1) for 1.0 s, and nbmn freed them"
    )
    assert sorted(session.interrupted) == [0, 2]
    assert session.distrusted


def test_ranks_that_wait_for_ever_are_freed() -> None:
    calls = {rank: Answering(STOPPED, at_once=False) for rank in (0, 1)}
    found = Diagnosis("outside", (2,), waiting(0, 1), "rank 2 does not run this cell")
    session = Session(calls, found)
    with pytest.raises(RanksStuck, match="rank 2 does not run this cell; ranks 0, 1 waited in"):
        outcome(session).require()
    assert sorted(session.interrupted) == [0, 1]
    assert session.distrusted


class Impatient(Answering):
    """Ctrl-C comes while it is waited for."""

    def __init__(self, presses: int) -> None:
        super().__init__(STOPPED, at_once=False)
        self._presses = presses

    def wait(self, seconds: float) -> bool:
        self._presses -= 1
        if self._presses >= 0:
            raise KeyboardInterrupt
        return self.done()


def test_a_stop_is_told_in_one_line() -> None:
    session = Session({0: Impatient(1), 1: Answering(STOPPED, at_once=False)})
    with pytest.raises(RanksInterrupted) as caught:
        outcome(session)
    assert str(caught.value) == "stopped on ranks 0, 1"
    assert sorted(session.interrupted) == [0, 1]
    assert session.distrusted


def test_a_second_stop_does_not_wait_for_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session({0: Impatient(2)})
    monkeypatch.setattr(session, "interrupt", lambda ranks, run: None)
    with pytest.raises(RanksInterrupted, match="stopped on rank 0; rank 0 not yet"):
        outcome(session)
