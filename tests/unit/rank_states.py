"""States of four ranks for tests: they wait, run, raised, or are over."""

from __future__ import annotations

import math

from nbmn.debug.states import RankState
from nbmn.records import Wait

WORLD = (0, 1, 2, 3)


def waiting(
    rank: int,
    operation: str = "allreduce",
    number: int = 5,
    *,
    link: str = "w",
    members: tuple[int, ...] = WORLD,
    peer: int | None = None,
    tag: int | None = None,
    line: int = 9,
    seconds: float = 1.4,
    changed: float = 10.0,
    confirmed: float = 11.0,
) -> RankState:
    message = operation.startswith(("send", "recv"))
    counted = 0 if message else number
    wait = Wait(7, link, counted, members, peer, tag, nth=counted)
    return RankState(
        rank,
        "waiting",
        f"cell [1] line {line}",
        seconds,
        operation,
        wait,
        begun={} if message else {link: number},
        changed=changed,
        confirmed=confirmed,
    )


def over(rank: int, state: str = "done", begun: int = 4, **more: object) -> RankState:
    details = {"changed": 9.0, "confirmed": math.inf, "begun": {"w": begun}, **more}
    return RankState(rank, state, **details)


def raised(rank: int, begun: int = 4, error: str = "ValueError", line: int = 3) -> RankState:
    return over(rank, "failed", begun, where=f"cell [1] line {line}", error=error)


def runs(rank: int, begun: int = 4, line: int = 5, **more: object) -> RankState:
    return RankState(rank, "running", f"cell [1] line {line}", 7.0, begun={"w": begun}, **more)


def states(*given: RankState) -> dict[int, RankState]:
    return {state.rank: state for state in given}
