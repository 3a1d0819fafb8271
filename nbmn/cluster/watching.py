"""What the notebook knows of all ranks while a cell runs, and what it makes of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from nbmn.debug import probe
from nbmn.debug.diagnosis import Diagnosis, fewer
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
    """A diagnosis that says which ranks came less often to the line where the others wait.

    Parameters
    ----------
    since
        When the cell began (``time.monotonic``).
    """
    if found.kind not in ("left", "apart"):
        return found
    calls = [(state.operation, state.where) for state in found.waiting]
    operation, line = max(calls, key=calls.count)
    there = [s for s in found.waiting if (s.operation, s.where) == (operation, line)]
    if is_message(there[0]):
        return found  # the other end makes another call
    absent = frozenset().union(*(need(state, states).ranks for state in there))
    often = _calls_at(ranks, line, since, operation)
    said = fewer(sorted(absent), sorted(s.rank for s in there), often, f"{operation} at {line}")
    if not said or (found.kind == "apart" and not all(often.get(rank) for rank in absent)):
        return found
    return replace(found, advice=said)


def iterations_in(errors: Mapping[int, CellError], ranks: Sequence[RankInfo], since: float) -> str:
    """Which ranks came less often to the line where others found that calls do not match."""
    lines = [error.where for error in errors.values() if error.name == "MismatchError"]
    if len(lines) < len(ranks) or len(set(lines)) < 2:
        return ""
    line = max(lines, key=lines.count)
    there = [rank for rank, error in errors.items() if error.where == line]
    often = _calls_at(ranks, line, since)
    absent = [rank for rank in errors if rank not in there]
    return fewer(sorted(absent), sorted(there), often, line) if all(often.values()) else ""


def _calls_at(
    ranks: Sequence[RankInfo], line: str, since: float, operation: str = ""
) -> dict[int, int | None]:
    here = [info for info in ranks if probe.is_here(info.host)]
    return {info.rank: probe.calls_at(info.pid, line, since, operation) for info in here}
