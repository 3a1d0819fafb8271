"""Why ranks do not go on, from what is known of all of them. Pure.

What is certain (:func:`deadlock`) ends a cell; what is only slow (:func:`delay`) is shown, and
never does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from nbmn.debug.states import RankState
from nbmn.debug.waits import States, agents, behind, is_free, is_message, sends, stuck
from nbmn.ranks import name_ranks

LONG = 3.0
"""Seconds of waiting after which it is worth a line."""


_ANSWER = "What one rank sends, the other must receive, with the same tag, in the same order"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Why ranks wait.

    ``kind`` is one of ``raised`` (another rank failed), ``left`` (another has finished the
    cell), ``outside`` (another does not run it), ``messages`` (sends and receives that do not
    fit), ``apart`` (in different calls), and ``slow`` (nothing is wrong for certain).
    """

    kind: str
    culprits: tuple[int, ...]
    """Ranks for which the others wait."""
    waiting: tuple[RankState, ...]
    """Those who wait, in rank order: ranks, or threads of them."""
    cause: str
    """What the culprits did, in words; empty where they themselves are among those who wait."""
    advice: str = ""

    @property
    def certain(self) -> bool:
        """Whether the wait can never end."""
        return self.kind != "slow"

    @property
    def ranks(self) -> tuple[int, ...]:
        """Ranks that wait."""
        return tuple(state.rank for state in self.waiting)

    def __str__(self) -> str:
        return self._text("wait")

    def past(self) -> str:
        """The same, once nbmn has freed those who waited."""
        return self._text("waited")

    def waited(self) -> str:
        """Who waited in what, for an error that tells the cause already."""
        return f"{_waits(self.waiting, 'waited')}, and nbmn freed {_them(self.waiting)}"

    def with_more(self, later: Diagnosis) -> Diagnosis:
        """Those who wait later too, because of what was found first."""
        more = tuple(state for state in later.waiting if state.rank not in self.ranks)
        return replace(self, waiting=tuple(sorted((*self.waiting, *more), key=_rank)))

    def _text(self, verb: str) -> str:
        waits = _waits(self.waiting, verb)
        between = "; " if self.cause and waits else ""
        if self.culprits == self.ranks:
            between = ": "
        return f"{self.cause}{between}{waits}" + (f". {self.advice}" if self.advice else "")


def deadlock(states: States) -> Diagnosis | None:
    """Who waits for ever, and why; None unless it is certain.

    Certain means that all concerned were heard of at least twice since anything about
    them has changed: news of ranks come at different times, and messages may be under way.
    """
    waiting = stuck(states)
    if not waiting:
        return None
    ended = [state for rank in behind(waiting, states) if (state := states[rank]).ended]
    concerned = [*waiting, *ended]
    changed = max(state.changed for state in concerned)
    if any(state.confirmed <= changed for state in concerned):
        return None
    waits = tuple(waiting)
    for state, explain in _ENDED.items():
        culprits = sorted((s for s in ended if s.state == state), key=lambda s: s.rank)
        if culprits:
            cause, advice = explain(culprits)
            if all(is_message(state) for state in waits):
                advice = _ANSWER
            return Diagnosis(state_kind(state), _ranks(culprits), waits, cause, advice)
    if all(is_message(state) for state in waits):
        advice = _ANSWER
        if all(sends(state) for state in waits):
            advice = "All send and none receives: let every other rank receive first"
        cause = "ranks wait for each other's messages"
        return Diagnosis("messages", _ranks(waits), waits, cause, advice)
    advice = "All ranks of a communicator must make the same calls in the same order"
    cause = "ranks are in different calls and wait for each other"
    return Diagnosis("apart", _ranks(waits), waits, cause, advice)


def state_kind(state: str) -> str:
    """The kind of a diagnosis that blames ranks in that state."""
    return {"failed": "raised", "done": "left"}.get(state, state)


def _failed(culprits: Sequence[RankState]) -> tuple[str, str]:
    said = _fold(culprits, lambda s: f"raised {s.error}{_at(s.where)}")
    return "; ".join(f"{who} {what}" for who, what, _ in said), ""


def _done(culprits: Sequence[RankState]) -> tuple[str, str]:
    return f"{name_ranks(_ranks(culprits))} {_has(culprits)} finished the cell", ""


def _outside(culprits: Sequence[RankState]) -> tuple[str, str]:
    verb = "does" if len(culprits) == 1 else "do"
    cause = f"{name_ranks(_ranks(culprits))} {verb} not run this cell"
    return cause, "Run it on all ranks that take part"


_ENDED: Mapping[str, Callable[[Sequence[RankState]], tuple[str, str]]] = {
    "failed": _failed,
    "done": _done,
    "outside": _outside,
}
"""How a rank can have ended, the graver first."""


def delay(states: States, pids: Mapping[int, int]) -> Diagnosis | None:
    """For whom ranks have waited long, or who goes on long after others have finished, and who
    is silent; None where all is quick.

    Parameters
    ----------
    pids
        Process ids of the ranks on this host.
    """
    doing = [agent for s in states.values() if not s.ended for agent in agents(s)]
    waiting = [s for s in doing if s.state == "waiting" and s.seconds >= LONG]
    late = behind(waiting, states)
    through = [s for s in states.values() if s.state == "done" and s.seconds >= LONG]
    if through:
        late |= {s.rank for s in states.values() if s.state == "running"}
    culprits = [s for state in states.values() if (s := _late(state, late)) is not None]
    if not culprits:
        return None
    blamed = frozenset(state.rank for state in culprits)
    waits = [s for s in waiting if behind([s], states) & blamed]
    said = _fold(culprits, lambda s: whereabouts(s, pids.get(s.rank)))
    cause = "; ".join(f"{who} {what}" for who, what, _ in said)
    if through and not waits:
        cause += f"; {_done(through)[0]}"
    return Diagnosis("slow", _ranks(culprits), tuple(sorted(waits, key=_rank)), cause)


def _late(state: RankState, late: frozenset[int]) -> RankState | None:
    """What of a rank others wait for: its main thread, or another."""
    if state.state == "silent":
        return state
    free = [agent for agent in agents(state) if is_free(agent)] if state.rank in late else []
    return next(iter(free), None)


def whereabouts(state: RankState, pid: int | None = None) -> str:
    """What a rank that has not ended does, as in ``runs at cell [12] line 3``."""
    at, for_ = _at(state.where), f" for {state.seconds:.0f} s"
    if state.state == "running":
        return f"{state.blocked or 'runs'}{at}{_and_threads(state)}"
    if state.state == "waiting":
        return f"is in {describe_wait(state)}{for_}"
    if state.state == "debugging":
        return f"is at the debugger's prompt{at}"
    if state.process == "T":
        remedy = f"; kill -CONT {pid} lets it go on" if pid else ""
        return f"is stopped by a signal{at}{remedy}"
    if state.process == "t":
        return f"is held by a debugger{at}"
    if state.process == "D":
        return f"waits for a device or a file system{at}"
    if state.process in ("R", "S"):
        return f"is silent{for_}: native code holds the interpreter{at}"
    return f"is silent{for_}" + (f"; it was last seen{at}" if at else "")


def _and_threads(state: RankState) -> str:
    waits = [thread for thread in state.threads if thread.state == "waiting"]
    return "".join(
        f", its thread {it.thread} waits in {describe_wait(it)} for {it.seconds:.0f} s"
        for it in waits
    )


def fewer(
    culprits: Sequence[int], waiting: Sequence[int], counts: Mapping[int, int | None], line: str
) -> str:
    """Say that some ranks made fewer calls at a line than others; empty if it is not so.

    Parameters
    ----------
    counts
        Calls at that line in this cell, by rank.
    line
        The operation and the line, such as ``allreduce at cell [12] line 3``.
    """
    few = {counts.get(rank) for rank in culprits}
    many = {counts.get(rank) for rank in waiting}
    if len(few) != 1 or len(many) != 1 or None in few | many:
        return ""
    (less,), (more,) = few, many
    assert less is not None
    assert more is not None
    if less >= more:
        return ""
    if not less:
        return f"{name_ranks(culprits)} did not call {line}: all ranks must"
    often = "once" if more - less == 1 else f"{more - less} times"
    return (
        f"{name_ranks(culprits)} called {line} at least {often} less than {name_ranks(waiting)}: "
        "fewer iterations, or a branch not taken"
    )


def describe_wait(state: RankState, on: str = "") -> str:
    """What a rank waits in, such as ``allreduce #418 (cell [12] line 9)``.

    Parameters
    ----------
    on
        Which communicator's, such as `` of ranks 0, 1``.
    """
    wait = state.wait
    number = f" #{wait.nth}" if wait and wait.nth else ""
    end = ""
    if wait is not None and is_message(state):
        other = "any rank" if wait.peer is None else f"rank {wait.peer}"
        tag = "" if wait.tag in (None, 0) else f" with tag {wait.tag}"
        end = f" {'to' if sends(state) else 'from'} {other}{tag}"
    place = f" ({state.where})" if state.where else ""
    return f"{state.operation}{number}{end}{on}{place}"


def _waits(waiting: Sequence[RankState], verb: str) -> str:
    said = []
    for who, what, group in _fold(waiting, lambda s: describe_wait(s, _on(s, waiting))):
        ending = "s" if verb == "wait" and len(group) == 1 else ""
        longest = max(state.seconds for state in group)
        said.append(f"{who} {verb}{ending} in {what} for {longest:.1f} s")
    return "; ".join(said)


def _on(state: RankState, waiting: Sequence[RankState]) -> str:
    """Which communicator's call a rank waits in, where the others wait in another's."""
    waits = [s.wait for s in waiting if s.wait is not None and s.wait.link]
    mine = state.wait
    others = [wait for wait in waits if mine is not None and wait.link != mine.link]
    if mine is None or not mine.link or not others:
        return ""
    ranks = name_ranks(sorted(mine.members))
    alike = any(set(wait.members) == set(mine.members) for wait in others)
    return f" of communicator {mine.made} of {ranks}" if alike and mine.made else f" of {ranks}"


def _fold(
    states: Iterable[RankState], say: Callable[[RankState], str]
) -> list[tuple[str, str, list[RankState]]]:
    """Who, what is said of them alike, and they, in rank order."""
    groups: dict[tuple[str, str], list[RankState]] = {}
    for state in sorted(states, key=_rank):
        groups.setdefault((state.thread, say(state)), []).append(state)
    return [(_who(group), what, group) for (_, what), group in groups.items()]


def _who(states: Sequence[RankState]) -> str:
    ranks = name_ranks([state.rank for state in states])
    thread = states[0].thread
    return f"thread {thread} of {ranks}" if thread else ranks


def _rank(state: RankState) -> int:
    return state.rank


def _ranks(states: Iterable[RankState]) -> tuple[int, ...]:
    return tuple(state.rank for state in sorted(states, key=_rank))


def _has(states: Sequence[RankState]) -> str:
    return "has" if len(states) == 1 else "have"


def _them(states: Sequence[RankState]) -> str:
    return "it" if len(states) == 1 else "them"


def _at(where: str) -> str:
    return f" at {where}" if where else ""
