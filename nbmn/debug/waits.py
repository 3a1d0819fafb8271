"""Who waits for whom, and which waits can never end. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from nbmn.debug.states import RankState
from nbmn.records import Wait

States = Mapping[int, RankState]
_MESSAGES = frozenset({"send", "send_obj", "recv", "recv_obj"})


@dataclass(frozen=True, slots=True)
class Need:
    """Whom a waiting rank waits for; nobody, where all have come and it is MPI's turn."""

    ranks: frozenset[int]
    any: bool = False
    """One of them would do."""


def agents(state: RankState) -> tuple[RankState, ...]:
    """A rank's threads that may call something: the main one, and others of the user's.

    Where the main one failed, only those that have talked to ranks before: a thread that reads
    ahead, or draws a progress bar, lives on, and will not make the call that failed to come.
    """
    if state.state != "failed":
        return (state, *state.threads)
    return (state, *(thread for thread in state.threads if thread.talks))


def need(state: RankState, states: States) -> Need:
    """Whom a waiting rank waits for."""
    wait = state.wait
    if wait is None:
        return Need(frozenset())
    members = frozenset(wait.members) if wait.members else frozenset(states)
    others = members - {state.rank}
    if is_message(state):
        ends = others if wait.peer is None else frozenset({wait.peer})
        others = [agent for end in ends if end in states for agent in agents(states[end])]
        met = any(meet(state, other) for other in others)
        return Need(frozenset() if met else ends, any=wait.peer is None)
    return Need(frozenset(r for r in others if r in states and not _has_come(states[r], state)))


def is_message(state: RankState) -> bool:
    """Whether it waits for one other rank, to send or to receive."""
    return bool(state.wait) and state.operation in _MESSAGES


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
    mine = state.wait
    assert mine is not None
    there = [agent for agent in agents(other) if _counts_alike(agent.wait, mine)]
    if there:
        return any(a.operation == state.operation and not is_message(a) for a in there)
    if not mine.number:
        return False
    begun = other.begun.get(mine.link, 0)
    # A rank that failed may have left it half way.
    return begun > mine.number if other.state == "failed" else begun >= mine.number


def _counts_alike(wait: Wait | None, other: Wait) -> bool:
    return wait is not None and (wait.link, wait.number) == (other.link, other.number)


def stuck(states: States) -> list[RankState]:
    """Threads that wait for what can never come, whatever the others still do; in rank order.

    A thread that computes may yet call anything. One that waits goes on if all it needs
    may come; a rank that has ended calls nothing any more, unless a thread of it lives on.
    A thread beside the main one counts only if that waits for its end: it may be
    there for cells to come.
    """
    waiting = [
        (agent, need(agent, states))
        for _, state in sorted(states.items())
        for agent in agents(state)
        if agent.state == "waiting"
    ]
    free = {rank for rank, state in states.items() if any(map(is_free, agents(state)))}
    while True:
        freed = {agent.rank for agent, it in waiting if agent.rank not in free and _may(it, free)}
        if not freed:
            break
        free |= freed
    return [
        agent for agent, it in waiting if (agent.joined or not agent.thread) and not _may(it, free)
    ]


def is_free(agent: RankState) -> bool:
    """Whether a thread does neither wait nor has ended."""
    waits = agent.state == "waiting" or any(other.joined for other in agent.threads)
    return not waits and (bool(agent.thread) or not agent.ended)


def _may(needs: Need, free: set[int]) -> bool:
    if not needs.ranks:
        return True
    return bool(needs.ranks & free) if needs.any else needs.ranks <= free


def behind(waiting: Iterable[RankState], states: States) -> frozenset[int]:
    """All ranks for which these threads wait, directly or by way of others."""
    found: set[int] = set()
    fresh = list(waiting)
    while fresh:
        needed = need(fresh.pop(), states).ranks
        more = {rank for rank in needed if rank in states} - found
        found |= more
        fresh += [a for r in more for a in agents(states[r]) if a.state == "waiting"]
    return frozenset(found)
