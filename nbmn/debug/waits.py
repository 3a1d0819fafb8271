"""Who waits for whom, and which waits can never end. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nbmn.debug.states import RankState

States = Mapping[int, RankState]


@dataclass(frozen=True, slots=True)
class Need:
    """Whom a waiting rank waits for; nobody, where all have come and it is MPI's turn."""

    ranks: frozenset[int]
    any: bool = False
    """One of them would do."""


def need(state: RankState, states: States) -> Need:
    """Whom a waiting rank waits for."""
    wait = state.wait
    if wait is None:
        return Need(frozenset())
    members = frozenset(wait.members) if wait.members else frozenset(states)
    others = members - {state.rank}
    if is_message(state):
        ends = others if wait.peer is None else frozenset({wait.peer})
        met = any(end in states and meet(state, states[end]) for end in ends)
        return Need(frozenset() if met else ends, any=wait.peer is None)
    return Need(frozenset(r for r in others if r in states and not _has_come(states[r], state)))


def is_message(state: RankState) -> bool:
    """Whether it waits for one other rank, to send or to receive."""
    return bool(state.wait) and state.operation.partition("_")[0] in ("send", "recv")


def sends(state: RankState) -> bool:
    """Whether it waits to send."""
    return state.operation.startswith("send")


def meet(one: RankState, other: RankState) -> bool:
    """Whether the message that one waits for is the message that the other waits for."""
    a, b = one.wait, other.wait
    if a is None or b is None or not is_message(other) or a.link != b.link:
        return False
    ends = a.peer in (other.rank, None) and b.peer in (one.rank, None)
    tags = a.tag == b.tag or a.tag is None or b.tag is None
    return ends and tags and sends(one) != sends(other)


def _has_come(other: RankState, state: RankState) -> bool:
    """Whether another rank is in the collective that this one waits in, or through with it."""
    mine, theirs = state.wait, other.wait
    assert mine is not None
    if theirs is not None and (theirs.link, theirs.number) == (mine.link, mine.number):
        return other.operation == state.operation and not is_message(other)
    if not mine.number:
        return False
    begun = other.begun.get(mine.link, 0)
    # A rank that failed may have left it half way.
    return begun > mine.number if other.state == "failed" else begun >= mine.number


def stuck(states: States) -> frozenset[int]:
    """Ranks that wait for what can never come, whatever the others still do.

    A rank that computes may yet call anything. One that waits goes on if all it needs
    may come; one that has ended calls nothing any more.
    """
    waiting = {rank: need(s, states) for rank, s in states.items() if s.state == "waiting"}
    free = {rank for rank, s in states.items() if s.state != "waiting" and not s.ended}
    while True:
        freed = {rank for rank, it in waiting.items() if rank not in free and _may(it, free)}
        if not freed:
            return frozenset(waiting.keys() - free)
        free |= freed


def _may(needs: Need, free: set[int]) -> bool:
    if not needs.ranks:
        return True
    return bool(needs.ranks & free) if needs.any else needs.ranks <= free


def behind(ranks: frozenset[int], states: States) -> frozenset[int]:
    """All for whom these ranks wait, directly or by way of others."""
    found: set[int] = set()
    fresh = set(ranks)
    while fresh:
        rank = fresh.pop()
        state = states[rank]
        if state.state == "waiting":
            more = {r for r in need(state, states).ranks if r in states} - found
            found |= more
            fresh |= more
    return frozenset(found)
