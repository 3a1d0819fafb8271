"""Variables between the notebook and the ranks."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from ipyparallel.error import EngineError

from nbmn import frames
from nbmn.cluster.calls import Call
from nbmn.cluster.errors import ClusterError, NoRanksError, RanksFailed, fold, is_interrupt
from nbmn.cluster.session import Session
from nbmn.engine.transfer import receive, send_back
from nbmn.messages import CellError
from nbmn.ranks import name_ranks

POLL = 0.05
"""Seconds between two looks at ranks that should be alive."""
FAILURE_PATIENCE = 2.0
"""Seconds that ranks have to end when another one has failed."""


def push(session: Session, values: Mapping[str, Any], ranks: Sequence[int]) -> int:
    """Set variables on ranks; they get copies.

    Parameters
    ----------
    values
        Pickled once, and sent once, to the first of ``ranks``; these pass it on over MPI.

    Returns
    -------
    int
        Bytes sent.

    Raises
    ------
    ClusterError
        A value cannot be pickled, or ranks are still busy with a cell.
    RanksFailed
        Ranks could not make the value, for example for want of a module.
    """
    try:
        sent = frames.dump(dict(values))
    except TypeError:
        raise ClusterError(_culprit(values)) from None
    root, *others = ranks
    run = session.new_run(f"%mn_push {', '.join(values)}")
    members = tuple(ranks)
    with session.idle(ranks):
        calls = {
            **session.call([root], receive, run, members, sent),
            **session.call(others, receive, run, members, None),
        }
    answers(session, run, calls)
    return sum(part.nbytes for part in sent)


def pull(session: Session, name: str, ranks: Sequence[int]) -> dict[int, Any]:
    """Fetch the value of a variable (or an expression) from ranks, by rank.

    Raises
    ------
    RanksFailed
        The name is not known there, or its value cannot be pickled.
    """
    run = session.new_run(f"%mn_pull {name}")
    with session.idle(ranks):
        calls = session.call(ranks, send_back, run, name)
    got = answers(session, run, calls)
    return {rank: frames.load(frames.writable(parts)) for rank, parts in got.items()}


def answers(session: Session, run: str, calls: Mapping[int, Call]) -> dict[int, frames.Parts]:
    """Wait for what ranks answer, a ``nbmn.engine.transfer.Reply`` each; Ctrl-C interrupts them.

    So does the failure of one of them: the others may wait for it.

    Raises
    ------
    RanksFailed
        A rank answered with an error.
    NoRanksError
        The ranks are gone.
    """
    errors: dict[int, CellError] = {}
    values: dict[int, frames.Parts] = {}
    waiting = dict(calls)
    patience = float("inf")
    try:
        while waiting:
            next(iter(waiting.values())).wait(POLL)
            for rank in [rank for rank, call in waiting.items() if call.done()]:
                error, parts = _result(session, waiting.pop(rank))
                if error is not None:
                    errors[rank] = error
                    patience = min(patience, time.monotonic() + FAILURE_PATIENCE)
                elif parts is not None:
                    values[rank] = parts
            if waiting:
                session.require_alive()
            if waiting and time.monotonic() > patience:
                patience = float("inf")
                session.listener.interrupt(waiting, run)
    except KeyboardInterrupt:
        session.distrust()
        session.listener.interrupt(calls, run)
        raise
    if errors:
        session.distrust()
        own = {rank: error for rank, error in errors.items() if not is_interrupt(error)}
        raise RanksFailed(fold(own or errors))
    return values


def _result(session: Session, call: Call) -> tuple[CellError | None, frames.Parts | None]:
    try:
        return call.result()
    except EngineError as error:
        raise NoRanksError(session.death() or str(error)) from None


def _culprit(values: Mapping[str, Any]) -> str:
    for name, value in values.items():
        try:
            frames.dump(value)
        except TypeError as error:
            return f"{name} was not sent to any rank: {error}"
    return f"{', '.join(values)} cannot be sent together"


def describe_pull(name: str, ranks: Sequence[int]) -> str:
    """What a pull gave, in words."""
    if len(ranks) == 1:
        return f"{name} is now rank {ranks[0]}'s"
    return f"{name} is now a dict with the values of {name_ranks(ranks)}"
