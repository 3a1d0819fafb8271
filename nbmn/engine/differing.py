"""Compares the value of an expression over ranks, among the ranks themselves.

What is sent to the notebook is the outcome; arrays go from rank to rank, and only where
their digests differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from IPython import get_ipython

from nbmn import frames
from nbmn.communicators import Communicator
from nbmn.debug.comparison import Comparison, Move, closer, compare, plan
from nbmn.debug.contrast import Contrast, contrast
from nbmn.debug.fingerprint import Fingerprint, fingerprint, on_host
from nbmn.engine.cells import message_of
from nbmn.engine.transfer import Reply, answer, channel
from nbmn.frames import Parts


def differ(run: str, members: Sequence[int], expression: str) -> Reply:
    """Compare the value of an expression over ranks. Collective over ``members``.

    The first member answers with the :class:`nbmn.debug.comparison.Comparison`. An
    expression that raises on a rank is a part of it.
    """

    def work() -> Parts | None:
        comparison = compare_here(channel(), members, *evaluate(expression))
        return None if comparison is None else frames.dump(comparison)

    return answer(run, work)


def evaluate(expression: str) -> tuple[Fingerprint, str]:
    """The fingerprint of an expression's value, or what it raised. Local."""
    try:
        value = eval(compile(expression, "<%mn_diff>", "eval"), get_ipython().user_ns)
        return fingerprint(value), ""
    except Exception as error:  # noqa: BLE001 - told to the notebook
        return Fingerprint(), f"{type(error).__name__}: {message_of(error)}"


def compare_here(
    comm: Communicator, members: Sequence[int], mine: Fingerprint, failure: str = ""
) -> Comparison | None:
    """Compare fingerprints; collective over ``members``, the first of which gets the outcome."""
    root, *others = members
    told = gather(comm, members, failure or mine.leaves)
    if told is None:
        moves = comm.recv_obj(root)
    else:
        comparison = compare(told)
        moves = plan(comparison)
        for rank in others:
            comm.send_obj(moves, rank)
    seen = gather(comm, members, look(comm, moves, mine.arrays))
    if told is None or seen is None:
        return None
    return closer(comparison, {key: one for each in seen.values() for key, one in each.items()})


def gather(comm: Communicator, members: Sequence[int], mine: Any) -> dict[int, Any] | None:
    """What each member has to say, by rank, for the first of them; None for the others."""
    root, *others = members
    if comm.rank != root:
        comm.send_obj(mine, root)
        return None
    return {root: mine, **{rank: comm.recv_obj(rank) for rank in others}}


def look(
    comm: Communicator, moves: Sequence[Move], arrays: dict[str, Any]
) -> dict[tuple[str, int], Contrast]:
    """Compare this rank's arrays with the references, by path and this rank."""
    found = {}
    # All ranks go through the moves in this order, so no two wait for each other.
    for move in moves:
        if comm.rank == move.source:
            reference = on_host(arrays[move.path])
            for target in move.targets:
                comm.send(reference, target)
        elif comm.rank in move.targets:
            reference = comm.recv(move.source)
            found[move.path, comm.rank] = contrast(on_host(arrays[move.path]), reference)
    return found
