"""What is known of each rank at one moment. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from nbmn.records import Heartbeat, Wait

SILENT = 2.5
"""Seconds without a heartbeat after which a rank is called silent."""


@dataclass(frozen=True, slots=True)
class RankState:
    """What one rank does, as far as the notebook knows.

    ``state`` is ``running`` (the user's code), ``debugging`` (at a prompt), ``waiting`` (for
    other ranks), ``silent`` (in a cell, and not heard of), ``failed`` or ``done`` (with the
    cell), or ``outside`` (it does not run the cell).
    """

    rank: int
    state: str
    where: str = ""
    """The user's line, such as ``cell [12] line 3``."""
    seconds: float = 0.0
    """How long it has been in this state; of a silent rank, since it was heard."""
    operation: str = ""
    """What it waits in, such as ``allreduce``."""
    wait: Wait | None = None
    error: str = ""
    """The exception's name, of a rank that failed."""
    blocked: str = ""
    """As :attr:`nbmn.records.Heartbeat.blocked`."""
    process: str = ""
    """Of a silent rank: the system's letter for its process, such as ``T`` for stopped."""
    begun: Mapping[str, int] = field(default_factory=dict)
    """Collectives it has begun, by communicator."""
    changed: float = 0.0
    """When the newest of this became known (``time.monotonic``)."""
    confirmed: float = 0.0
    """When it was last heard that this is so, and heard again since; infinite of one that has
    ended and was heard of since."""
    threads: tuple[RankState, ...] = ()
    """What other threads do that may yet call something, whatever the main thread does; each of
    them ``waiting`` or ``running``."""
    thread: str = ""
    """The name of such a thread."""
    joined: bool = False
    """Of such a thread: the main one waits for its end, and for nothing else."""
    talks: bool = False
    """Of such a thread: it has called something of a communicator's before."""

    @property
    def ended(self) -> bool:
        """Whether it will call nothing any more in this cell."""
        return self.state in ("failed", "done", "outside")


@dataclass(frozen=True, slots=True)
class Heard:
    """The heartbeats of a rank, in short; times are ``time.monotonic`` here."""

    beat: Heartbeat
    """The newest."""
    arrived: float
    """When it came."""
    previous: float = 0.0
    """When the one before came."""
    since: float = 0.0
    """When the first of those came that say the same as the newest."""

    def then(self, beat: Heartbeat, now: float) -> Heard:
        """With one more heartbeat."""
        same = _what(beat) == _what(self.beat)
        return Heard(beat, now, self.arrived, self.since if same else now)


def _what(beat: Heartbeat) -> tuple[object, ...]:
    threads = tuple((busy.thread, _call(busy.wait), busy.joined) for busy in beat.threads)
    return beat.run, beat.state, _call(beat.wait), threads


def _call(wait: Wait | None) -> int:
    return wait.sequence if wait is not None else 0


def _with_threads(state: RankState, beat: Heartbeat, age: float) -> RankState:
    threads = tuple(
        replace(
            state,
            state="waiting" if busy.wait is not None else "running",
            where=busy.where,
            seconds=busy.seconds + age,
            operation=busy.operation,
            wait=busy.wait,
            error="",
            blocked="",
            thread=busy.thread,
            joined=busy.joined,
            talks=busy.talks,
        )
        for busy in beat.threads
    )
    return replace(state, threads=threads)


def in_cell(rank: int, run: str, heard: Heard | None, now: float) -> RankState:
    """The state of a rank that was sent the run of that name and has not answered."""
    if heard is None:
        return RankState(rank, "running")
    beat, age = heard.beat, now - heard.arrived
    if age > SILENT:
        known = beat if beat.run == run else Heartbeat(rank, run, beat.time, "running")
        return RankState(
            rank,
            "silent",
            known.where,
            age,
            known.operation,
            known.wait,
            begun=beat.begun,
            changed=heard.arrived,
        )
    if beat.run != run:
        return RankState(rank, "running", begun=beat.begun)
    state = RankState(
        rank,
        beat.state,
        beat.where,
        beat.seconds + age,
        beat.operation,
        beat.wait,
        blocked=beat.blocked,
        begun=beat.begun,
        changed=heard.since,
        confirmed=heard.previous,
    )
    return _with_threads(state, beat, age)


def ended(
    rank: int, run: str, error: str, where: str, answered: float, heard: Heard | None, now: float
) -> RankState:
    """The state of a rank that has ended the run of that name, at the time ``answered``.

    Parameters
    ----------
    error, where
        The exception's name and line; empty if it raised none.
    """
    after = heard is not None and heard.beat.run != run and heard.arrived > answered
    state = RankState(
        rank,
        "failed" if error else "done",
        where,
        now - answered,
        error=error,
        begun=heard.beat.begun if heard is not None else {},
        changed=answered,
        confirmed=math.inf if after else 0.0,
    )
    return state if heard is None else _with_threads(state, heard.beat, now - heard.arrived)


def outside(rank: int, heard: Heard | None) -> RankState:
    """The state of a rank that runs no cell, and was not sent this one."""
    if heard is None or heard.beat.run:
        return RankState(rank, "outside")
    begun = heard.beat.begun
    state = RankState(rank, "outside", begun=begun, changed=heard.since, confirmed=math.inf)
    return _with_threads(state, heard.beat, 0.0)
