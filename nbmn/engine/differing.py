"""Compares the value of an expression over ranks, among the ranks themselves.

What is sent to the notebook is the outcome; arrays go from rank to rank, and only where
their digests differ.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Sequence
from typing import Any

from IPython import get_ipython

from nbmn import frames
from nbmn.communicators import Communicator
from nbmn.debug.comparison import Comparison, Move, closer, compare, plan
from nbmn.debug.contrast import Contrast, contrast
from nbmn.debug.fingerprint import Fingerprint, fingerprint
from nbmn.debug.leaves import on_host
from nbmn.engine.cells import message_of
from nbmn.engine.transfer import Reply, answer, channel
from nbmn.frames import Parts


def examine(run: str, expression: str) -> Reply:
    """Evaluate an expression here, for :func:`differ`, which is to come; it may be collective.

    Apart, so that a rank that waits for others in the expression is told from those that are
    through with it.
    """

    def work() -> None:
        kept().clear()
        try:
            # The file's name is what a rank that waits in it is said to be at.
            value = eval(compile(expression, "%mn_diff", "eval"), get_ipython().user_ns)
            kept().append((fingerprint(value), ""))
        except BaseException as error:  # an interrupt too is told as what it raised there
            kept().append((Fingerprint(), said(error)))
            raise

    return answer(run, work)


def said(error: BaseException) -> str:
    """An exception in one line."""
    name, message = type(error).__name__, message_of(error)
    return f"{name}: {message}" if message else name


def differ(run: str, members: Sequence[int], tolerance: float) -> Reply:
    """Compare what :func:`examine` found over ranks. Collective over ``members``.

    The first member answers with the :class:`nbmn.debug.comparison.Comparison`. An
    expression that raised on a rank is a part of it.
    """

    def work() -> Parts | None:
        # An interrupt may have come before anything was kept.
        mine = kept().pop() if kept() else (Fingerprint(), KeyboardInterrupt.__name__)
        comparison = compare_here(channel(), members, *mine, tolerance=tolerance)
        return None if comparison is None else frames.dump(comparison)

    return answer(run, work)


@functools.cache
def kept() -> deque[tuple[Fingerprint, str]]:
    """The fingerprint of the last expression, or what it raised; used up when compared."""
    return deque(maxlen=1)


def compare_here(
    comm: Communicator,
    members: Sequence[int],
    mine: Fingerprint,
    failure: str = "",
    tolerance: float = 0.0,
) -> Comparison | None:
    """Compare fingerprints; collective over ``members``, the first of which gets the outcome."""
    root, *others = members
    told = gather(comm, members, failure or mine.leaves)
    if told is None:
        moves = comm.recv_obj(root)
    else:
        comparison = compare(told, tolerance)
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
            reference = on_host(arrays[move.places[comm.rank]])
            for target in move.targets:
                comm.send(reference, target)
        elif comm.rank in move.targets:
            reference = comm.recv(move.source)
            array = on_host(arrays[move.places[comm.rank]])
            found[move.path, comm.rank] = contrast(array, reference, move.tolerance)
    return found
