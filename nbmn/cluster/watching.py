"""What the notebook knows of all ranks while a cell runs, and what it makes of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from nbmn.debug import probe
from nbmn.debug.diagnosis import Diagnosis, fewer
from nbmn.debug.iterations import Call, call_of, missed
from nbmn.debug.states import Heard, RankState, ended, in_cell, outside
from nbmn.debug.waits import is_message, need
from nbmn.messages import CellError, RankInfo


@dataclass(frozen=True, slots=True)
class Answer:
    """How a rank ended a cell."""

    error: CellError | None
    time: float
    """When it did (``time.monotonic``)."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A cell that has not ended, among others."""

    run: str
    ranks: tuple[int, ...]
    after: tuple[str, ...]
    """Runs whose end it waits for."""
    begun: bool
    """Whether it was sent to its ranks."""


def to_come(turns: Sequence[Turn], run: str) -> dict[int, str]:
    """Ranks that will run another cell yet, though a run does not end, and that cell's run.

    Parameters
    ----------
    turns
        In the order in which the cells were asked for.
    run
        The name of the run that does not end.
    """
    blocked, found = {run}, {}
    for turn in turns:
        if blocked & set(turn.after):
            blocked.add(turn.run)
        elif not turn.begun and turn.run != run:
            found.update(dict.fromkeys(turn.ranks, turn.run))
    return found


def look(
    ranks: Sequence[RankInfo],
    beats: Mapping[int, Heard],
    running: Mapping[int, str],
    answers: Mapping[int, Answer],
    run: str,
    now: float,
    stacks: probe.Stacks,
) -> dict[int, RankState]:
    """The state of every rank, as a cell sees it.

    Parameters
    ----------
    running
        Name of the run that each rank has been sent and not answered, or will be sent, if any.
    answers
        Of the ranks that have ended the cell.
    run
        The cell's name.
    """
    states = {}
    for info in ranks:
        rank, heard = info.rank, beats.get(info.rank)
        if rank in running:
            state = in_cell(rank, running[rank], heard, now)
            silent = state.state == "silent" and probe.is_here(info.host)
            states[rank] = _probed(state, info, stacks) if silent else state
            continue
        answer = answers.get(rank)
        if answer is None:
            states[rank] = outside(rank, heard)
            continue
        error = answer.error
        name, where = (error.name, error.where) if error is not None else ("", "")
        states[rank] = ended(rank, run, name, where, answer.time, heard, now)
    return states


def _probed(state: RankState, info: RankInfo, stacks: probe.Stacks) -> RankState:
    """What the system says of a silent rank, and the stack that it can be made to write."""
    process = probe.process_state(info.pid)
    frames = () if process in ("T", "t") else stacks.once(info.pid, info.box, state.changed)
    return replace(state, process=process, where=probe.user_line(frames) or state.where)


def compare_iterations(
    found: Diagnosis, states: Mapping[int, RankState], ranks: Sequence[RankInfo], since: float
) -> Diagnosis:
    """A diagnosis that says which ranks came less often to the call where the others wait.

    Parameters
    ----------
    since
        When the cell began (``time.monotonic``).
    """
    if found.kind not in ("left", "apart") or any(map(is_message, found.waiting)):
        return found  # a message's other end makes another call
    absent: dict[Call, set[int]] = {}
    for state in found.waiting:
        call = Call(state.operation, state.where)
        absent.setdefault(call, set()).update(need(state, states).ranks)
    stand = {state.rank: Call(state.operation, state.where) for state in found.waiting}
    said = missed(stand, absent, probe.recorded(ranks, since), ever=found.kind == "apart")
    said = said or _fewer_updates(found.waiting, states)
    return replace(found, advice=said) if said else found


def _fewer_updates(waiting: Sequence[RankState], states: Mapping[int, RankState]) -> str:
    """Who made fewer updates, where others wait for the mean of the last (double buffering).

    A mean is waited for at another line, or in another cell, than where it was begun.
    """
    if any(state.operation != "finish_mean_grad" for state in waiting):
        return ""
    late = sorted(frozenset().union(*(need(state, states).ranks for state in waiting)))
    there = sorted(state.rank for state in waiting)
    counts: dict[int, int | None] = {}
    for state in waiting:
        wait = state.wait
        assert wait is not None
        counts |= {rank: states[rank].begun.get(wait.link, 0) for rank in (*late, state.rank)}
    return fewer(late, there, counts, "optimizer.update")


def iterations_in(errors: Mapping[int, CellError], ranks: Sequence[RankInfo], since: float) -> str:
    """Which ranks came less often to the call where others found that calls do not match."""
    if not all(rank.rank in errors for rank in ranks):
        return ""
    if any(error.name != "MismatchError" for error in errors.values()):
        return ""
    recorded = probe.recorded(ranks, since)
    stand = {}
    for rank, error in errors.items():
        calls = [call_of(entry) for entry in recorded.get(rank) or ()]
        # Not what its code called later, while the error was on its way.
        at = [call for call in calls if call.line == error.where] or calls
        if at:
            stand[rank] = at[-1]
    absent = {call: {rank for rank in stand if stand[rank] != call} for call in set(stand.values())}
    everywhere = len(absent) > 1 and len(stand) == len(errors)
    return missed(stand, absent, recorded, ever=True) if everywhere else ""
