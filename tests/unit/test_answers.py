"""Waiting for what ranks answer, when one of them fails while others wait for it."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from nbmn.cluster import transfer
from nbmn.cluster.errors import RanksFailed
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
    def __init__(self, calls: dict[int, Answering]) -> None:
        self.listener = self
        self.calls = calls
        self.interrupted: list[int] = []
        self.distrusted = False

    def interrupt(self, ranks: Any, run: str) -> None:
        assert run == "push#1"
        self.interrupted += ranks
        for rank in self.interrupted:
            self.calls[rank].event.set()

    def require_alive(self) -> None:
        pass

    def distrust(self) -> None:
        self.distrusted = True


def test_values_come_by_rank() -> None:
    calls = {rank: Answering((None, [rank] if rank else None)) for rank in (2, 0, 1)}
    session: Any = Session(calls)
    assert transfer.answers(session, "push#1", calls) == {1: [1], 2: [2]}  # type: ignore[arg-type]
    assert not session.distrusted


def test_ranks_that_wait_for_one_that_failed_are_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "FAILURE_PATIENCE", 0.05)
    stopped = CellError("KeyboardInterrupt", ""), None
    calls = {
        0: Answering(stopped, at_once=False),
        1: Answering((CellError("MemoryError", "too large"), None)),
        2: Answering(stopped, at_once=False),
    }
    session: Any = Session(calls)
    with pytest.raises(RanksFailed) as caught:
        transfer.answers(session, "push#1", calls)  # type: ignore[arg-type]
    assert str(caught.value) == "rank 1 raised MemoryError: too large"
    assert sorted(session.interrupted) == [0, 2]
    assert session.distrusted
