"""Asks ranks where they are."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from nbmn.cluster.listener import await_answers
from nbmn.cluster.session import Session
from nbmn.debug import probe
from nbmn.debug.stacks import Place
from nbmn.debug.states import SILENT, Heard, RankState, in_cell, outside
from nbmn.messages import RankInfo
from nbmn.records import Stack

PATIENCE = 1.0
"""Seconds that ranks have to answer; one that is silent never does."""


def where(session: Session, ranks: Sequence[int]) -> list[Place]:
    """Where ranks are at this moment; also while they run a cell, and if they are stuck.

    A rank whose interpreter is held by native code cannot answer. If it is on this
    host, it is made to write its stack by a signal, unless that would cut short the system call
    it is in.

    Raises
    ------
    NoRanksError
        The ranks are ending, or have ended.
    """
    listener = session.listener
    listener.ask_where(ranks)
    stacks = await_answers(listener.stacks, ranks, PATIENCE)
    session.require_alive()  # else it would look at processes that are no more
    running = {rank: run.request.run for rank, run in session.running().items()}
    return [_place(session, session.ranks[r], stacks.get(r), running.get(r)) for r in ranks]


def _place(session: Session, info: RankInfo, stack: Stack | None, run: str | None) -> Place:
    rank, now = info.rank, time.monotonic()
    here = probe.is_here(info.host)
    pid = info.pid if here else None
    if stack is not None:
        beat = Heard(stack.beat, now)
        state = in_cell(rank, stack.run, beat, now) if stack.run else outside(rank, beat)
        return Place(state, stack.frames, pid)
    heard = session.listener.beats.get(rank)
    age = now - heard.arrived if heard is not None else 0.0
    if run is None and age <= SILENT:
        return Place(outside(rank, heard), pid=pid)
    where = heard.beat.where if heard is not None and heard.beat.run == run else ""
    state = RankState(rank, "silent", where, age)
    if not here:
        return Place(state)
    process = probe.process_state(info.pid)
    frames = () if process in ("T", "t") else session.stacks.ask(info.pid, info.box)
    where = probe.user_line(frames) or where
    return Place(replace(state, where=where, process=process), frames, info.pid)
