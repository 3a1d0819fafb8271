"""Which ranks came less often to a call in which others stand. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from nbmn.communicators.recordings import Entry
from nbmn.debug.diagnosis import fewer
from nbmn.engine.lines import describe


class Call(NamedTuple):
    """A collective at a line."""

    operation: str
    line: str
    """Such as ``cell [12] line 3``."""

    def __str__(self) -> str:
        return f"{self.operation} at {self.line}"


def call_of(entry: Entry) -> Call:
    """The call that was recorded."""
    return Call(entry.operation, describe(entry.file, entry.line))


def missed(
    stand: Mapping[int, Call],
    absent: Mapping[Call, Collection[int]],
    recorded: Mapping[int, Sequence[Entry] | None],
    *,
    ever: bool,
) -> str:
    """Say which ranks made a call less often than those who stand in it; empty if not clear.

    Where ranks stand in different calls, each may seem to be missing in the other's. What
    counts then is which of them went on as they had done before: in a loop, who begins it anew,
    and not who has left it.

    Parameters
    ----------
    stand
        The call in which each rank is that waits or found a mismatch.
    absent
        Who has not come to a call.
    recorded
        What each rank has recorded since the cell began; None if that is not known.
    ever
        Speak only of calls that the absent ranks have made before.
    """
    said: dict[Call, str] = {}
    for call in sorted(set(stand.values())):
        there = sorted(rank for rank, other in stand.items() if other == call)
        away = sorted(absent[call])
        often = {rank: _often(recorded.get(rank), call) for rank in (*there, *away)}
        if not ever or all(often[rank] for rank in away):
            said[call] = fewer(away, there, often, str(call))
    found = {call: text for call, text in said.items() if text}
    if len(found) > 1:
        usual = {stand[r] for r in stand if _is_usual(recorded.get(r) or (), stand[r])}
        found = {call: text for call, text in found.items() if call in usual}
    return next(iter(found.values())) if len(found) == 1 else ""


def _often(entries: Sequence[Entry] | None, call: Call) -> int | None:
    return None if entries is None else sum(call_of(entry) == call for entry in entries)


def _is_usual(entries: Sequence[Entry], call: Call) -> bool:
    """Whether the newest call followed the one before it as it did the time before."""
    calls = [call_of(entry) for entry in entries]
    while calls and calls[-1] != call:
        calls.pop()
    if len(calls) < 3:
        return False
    before = calls[-2]
    earlier = [i for i, other in enumerate(calls[:-2]) if other == before]
    return bool(earlier) and calls[earlier[-1] + 1] == call
