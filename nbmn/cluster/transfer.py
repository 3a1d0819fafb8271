"""Variables between the notebook and the ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nbmn import frames
from nbmn.cluster.calls import Call
from nbmn.cluster.errors import ClusterError
from nbmn.cluster.session import Session
from nbmn.cluster.together import together
from nbmn.engine.transfer import receive, send_back
from nbmn.ranks import name_ranks


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
    members = tuple(ranks)

    def send(run: str) -> dict[int, Call]:
        return {
            **session.call([root], receive, run, members, sent),
            **session.call(others, receive, run, members, None),
        }

    together(session, f"%mn_push {', '.join(values)}", ranks, send).require()
    return sum(part.nbytes for part in sent)


def pull(session: Session, name: str, ranks: Sequence[int]) -> dict[int, Any]:
    """Fetch the value of a variable (or an expression) from ranks, by rank.

    Raises
    ------
    RanksFailed
        The name is not known there, or its value cannot be pickled.
    """

    def send(run: str) -> dict[int, Call]:
        return session.call(ranks, send_back, run, name)

    got = together(session, f"%mn_pull {name}", ranks, send).require()
    return {rank: frames.load(frames.writable(parts)) for rank, parts in got.items()}


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
