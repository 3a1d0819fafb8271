"""Ranks agree on what they are about to do before anyone does it.

A check that fails on one rank only would leave the others waiting. So every rank
votes: on one host in a meeting in shared memory, otherwise 32 bytes in one small all-reduce.
Only if the vote is not unanimous do the ranks tell each other their statements, and all of them
raise the same error.
"""

from __future__ import annotations

import builtins
import functools
import hashlib
import operator
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple, TypeVar

import numpy as np

from nbmn.communicators import objects, transport
from nbmn.communicators.errors import MismatchError, RemoteRankError
from nbmn.communicators.link import Link, Pending

_Prepared = TypeVar("_Prepared")


class Outcome(NamedTuple):
    """How the ranks voted."""

    unanimous: bool
    """All made the same statement."""
    failed: bool
    """Some rank cannot go on."""
    flagged: bool
    """Some rank raised its flag."""


class Vote:
    """A vote under way; the caller may work until it asks for the outcome.

    Meanwhile it must not begin another vote over this link: of meetings, the next one is shown
    only when the one before has been seen to its end.

    Parameters
    ----------
    step
        Counts what must be alike too, and changes from one vote to the next.
    """

    __slots__ = ("_link", "_pending", "_values")

    def __init__(
        self,
        link: Link,
        statement: Hashable,
        *,
        step: int = 0,
        failed: bool = False,
        flag: bool = False,
    ) -> None:
        # Not in the statement, whose digest is remembered.
        word = hash((digest(statement), step)) & _ALL_ONES
        self._link = link
        self._values: np.ndarray | None = None
        if link.ledger.meets:
            word = word & ~_FLAGS | _FAILED * failed | _FLAG * flag
            self._pending: Pending = link.start(lambda calls: calls.Imeet(word))
            return
        # The maximum of a word and of its complement are complements of each other
        # only if all ranks have the same word.
        self._values = np.array([word, ~word & _ALL_ONES, failed, flag], np.uint64)
        self._pending = transport.start_max(link, self._values)

    def outcome(self) -> Outcome:
        """Wait for the other ranks' votes."""
        self._link.finish(self._pending)
        if self._values is None:
            words = self._pending.requests[0].words
            said = functools.reduce(operator.or_, words)
            unanimous = len({word & ~_FLAGS for word in words}) == 1
            return Outcome(unanimous, bool(said & _FAILED), bool(said & _FLAG))
        word, complement, failed, flag = self._values.tolist()
        return Outcome(word == ~complement & _ALL_ONES, bool(failed), bool(flag))


_ALL_ONES = 2**64 - 1
_FAILED, _FLAG = 1, 2
_FLAGS = _FAILED | _FLAG


@functools.lru_cache(maxsize=128)
def digest(statement: Hashable) -> int:
    """Return 64 bits that are the same for the same statement in every process."""
    return int.from_bytes(hashlib.blake2b(repr(statement).encode(), digest_size=8).digest())


def agree(
    link: Link, operation: str, statement: Hashable = None, error: Exception | None = None
) -> None:
    """Return if no rank has an error and all make the same statement; collective.

    Raises
    ------
    MismatchError
        On all ranks: the statements differ.
    Exception
        On all ranks: the error of the lowest rank that has one, if its type is a
        built-in one, otherwise RemoteRankError.
    """
    compare(link, operation, statement, None, error)


def prepare_together(link: Link, operation: str, prepare: Callable[[], _Prepared]) -> _Prepared:
    """Return what ``prepare`` returns, once it has done so on all ranks; collective.

    Raises
    ------
    Exception
        On all ranks: it raised one on some.
    """
    prepared: Any = None
    error: Exception | None = None
    try:
        prepared = prepare()
    except Exception as caught:  # noqa: BLE001 - whatever it is, the other ranks are told
        error = caught
    try:
        agree(link, operation, None, error)
    finally:
        # Its traceback leads to this frame, and to all that could be prepared: gigabytes, perhaps.
        error = None
    return prepared


def any_of(link: Link, operation: str, flag: bool) -> bool:
    """Say whether ``flag`` is true on any rank; collective.

    Raises
    ------
    MismatchError
        On all ranks: they are in different operations.
    """
    outcome = Vote(link, (operation, None, None), flag=flag).outcome()
    if outcome.failed:
        raise_together(link, operation, None)
    if not outcome.unanimous:
        exchange(link, operation, None, None)
    return outcome.flagged


def compare(
    link: Link,
    operation: str,
    alike: Hashable,
    own: Hashable,
    error: Exception | None = None,
) -> list[Any]:
    """Return what each rank says of its own, in rank order; collective.

    Costs one vote where all say the same, an exchange of statements where not.

    Parameters
    ----------
    alike
        What must be the same on all ranks.
    own
        What may differ.

    Raises
    ------
    MismatchError
        On all ranks: they are in different operations, or ``alike`` differs.
    Exception
        On all ranks: the error of the lowest rank that has one, as for :func:`agree`.
    """
    outcome = Vote(link, (operation, alike, own), failed=error is not None).outcome()
    if outcome.failed:
        raise_together(link, operation, error)
    if outcome.unanimous:
        return [own] * link.size
    return exchange(link, operation, alike, own)


def exchange(link: Link, operation: str, alike: Any, own: Any) -> list[Any]:
    """Return each rank's ``own`` once a vote was not unanimous; collective.

    Raises
    ------
    MismatchError
        On all ranks: they are in different operations, or ``alike`` differs.
    """
    said = objects.allgather(link, (operation, alike, own))
    calls = [(theirs, same) for theirs, same, _ in said]
    if any(call != calls[0] for call in calls):
        lines = "\n".join(
            f"  rank {rank}: {theirs}{'' if same is None else f' {same}'}"
            for rank, (theirs, same) in enumerate(calls)
        )
        raise MismatchError(f"{operation}: the ranks do not agree:\n{lines}")
    return [theirs for _, _, theirs in said]


def raise_together(link: Link, operation: str, error: Exception | None) -> None:
    """Raise on all ranks the error of the lowest rank that has one; collective."""
    mine = None if error is None else (type(error).__name__, str(error))
    reports = objects.allgather(link, mine)
    rank, (name, text) = next((r, report) for r, report in enumerate(reports) if report)
    kind = getattr(builtins, name, None)
    if not (isinstance(kind, type) and issubclass(kind, (TypeError, ValueError, RuntimeError))):
        kind = MismatchError if name == "MismatchError" else RemoteRankError
        # The text alone may be a key, or empty.
        text = text if kind is MismatchError else f"{name}: {text}"
    message = f"{operation}: on rank {rank}: {text}"
    raise kind(message) from error
