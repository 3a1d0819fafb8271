"""Who died of what, from what mpiexec printed. Pure."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from nbmn.messages import RankInfo
from nbmn.ranks import name_ranks

_MPICH = re.compile(r"PID (\d+) RUNNING AT[^\n]*\n=\s+EXIT CODE: (\d+)")
_MPICH_SIGNAL = re.compile(r"EXIT STRING: [^\n]*\(signal (\d+)\)")
_OPENMPI = re.compile(r"with PID (\d+) [^\n]*?(?:exited on\s+signal (\d+)|exiting\s+improperly)")


@dataclass(frozen=True, slots=True)
class _Word:
    """What mpiexec said of one process."""

    pid: int
    code: int
    by_signal: bool


@dataclass(frozen=True, slots=True)
class _End:
    """How those ended who did before all others."""

    ranks: tuple[int, ...]
    """Several when they were not told apart, none when it was no rank's process."""
    number: int | None
    """Signal or exit code; None while mpiexec goes on as if nothing had happened."""
    by_signal: bool
    pid: int = 0
    aborted: bool = False
    """By MPI, on a call of an unknown rank."""


@dataclass(frozen=True, slots=True)
class Fate:
    """How a rank ended."""

    how: str
    """``killed``, ``exited`` or, if somebody else was to blame, ``ended``."""
    detail: str = ""
    """By or with what."""


def _mpiexec_said(logs: str) -> list[_Word]:
    by_signal = _MPICH_SIGNAL.search(logs) is not None
    words = [_Word(int(pid), int(code), by_signal) for pid, code in _MPICH.findall(logs)]
    words += [_Word(int(pid), int(code or 0), bool(code)) for pid, code in _OPENMPI.findall(logs)]
    return words


def cause(
    logs: str,
    ranks: Sequence[RankInfo],
    left: Mapping[int, int | None] = MappingProxyType({}),
    code: int | None = None,
    lines: Mapping[int, str] = MappingProxyType({}),
    out_of_memory: bool | None = None,
) -> str:
    """Who died of what, as far as mpiexec said.

    Parameters
    ----------
    left
        Ranks seen to end before all others, with their wait status or None; several when they
        were not told apart.
    code
        mpiexec's exit code; None while it runs.
    lines
        The user's line at which each rank was last.
    out_of_memory
        Whether the kernel has ended a process for want of memory; None if it does not tell.
    """
    pids = {info.rank: info.pid for info in ranks}
    first = _first(logs, pids, left, code)
    if first is None:
        return "the ranks have ended"
    if first.number is None:
        who = name_ranks(list(left))
        return f"{who} exited, as by os._exit(0), and the others are of no use alone"
    if first.aborted:
        return f"a rank called MPI_Abort with code {code}, or MPI did, and mpiexec ended all ranks"
    line = lines.get(first.ranks[0], "") if len(first.ranks) == 1 else ""
    who = _who(first.ranks, pids) if first.ranks else f"the process {first.pid}"
    return _obituary(who, first.number, first.by_signal, line, out_of_memory)


def fates(
    logs: str,
    ranks: Sequence[RankInfo],
    left: Mapping[int, int | None] = MappingProxyType({}),
    code: int | None = None,
) -> dict[int, Fate]:
    """How each rank ended, as far as that is known; arguments as of :func:`cause`."""
    first = _first(logs, {info.rank: info.pid for info in ranks}, left, code)
    if first is None:
        return {}
    if len(first.ranks) > 1:  # one of them
        found = dict.fromkeys(first.ranks, Fate("ended"))
    elif first.by_signal:
        found = dict.fromkeys(first.ranks, Fate("killed", f"by {_signal(first.number or 0)}"))
    else:
        found = dict.fromkeys(first.ranks, Fate("exited", f"with code {first.number or 0}"))
    if first.number is None:  # mpiexec does not mind, and the others live
        return found
    return dict.fromkeys((info.rank for info in ranks), Fate("ended", "by mpiexec")) | found


def _first(
    logs: str, pids: Mapping[int, int], left: Mapping[int, int | None], code: int | None
) -> _End | None:
    """The end of all ranks' work; None if nothing is known of it."""
    known = [status for status in left.values() if status is not None]
    said = _mpiexec_said(logs)
    if not said and len(left) == len(known) and _is_abort(known, code):
        return _End((), code, False, aborted=True)
    if len(left) == len(known) == 1:
        status = known[0]
        by_signal = os.WIFSIGNALED(status)
        number = os.WTERMSIG(status) if by_signal else os.WEXITSTATUS(status)
        return _End(tuple(left), number, by_signal)
    if said:
        # It may blame a rank that it ended itself: whom we saw leave first counts.
        suspects = [pids[rank] for rank in left]
        word = next((word for word in said if word.pid in suspects), said[0])
        first = suspects[0] if suspects and word.pid not in suspects else word.pid
        signals = _MPICH_SIGNAL.findall(logs)
        # Of one that it ended itself it tells SIGKILL; the job's own signal is that of the first.
        number = int(signals[0]) if signals and word.pid != first else word.code
        own = tuple(rank for rank, pid in pids.items() if pid == first)
        return _End(own, number, word.by_signal, first)
    return _End(tuple(left), code, False) if left else None


def _is_abort(statuses: Collection[int], code: int | None) -> bool:
    """Whether ranks were killed that mpiexec does not accuse, and its exit code is no signal's.

    It kills all ranks then, also the one that called, and which goes first is chance.
    """
    killed = all(os.WIFSIGNALED(s) and os.WTERMSIG(s) == signal.SIGKILL for s in statuses)
    return killed and code is not None and 0 < code < 128 and code != signal.SIGKILL


def _who(ranks: Collection[int], pids: Mapping[int, int]) -> str:
    return f"{name_ranks(list(ranks))} (pid {', '.join(str(pids[rank]) for rank in ranks)})"


def _obituary(who: str, code: int, by_signal: bool, line: str, out_of_memory: bool | None) -> str:
    at = f" at {line}" if line else ""
    if not by_signal:
        return f"{who} exited with code {code}{at}, and the other ranks with it"
    name = _signal(code)
    hint = ""
    if name == "SIGKILL" and out_of_memory:
        hint = ", probably out of memory: the kernel has just killed a process for that"
    elif name == "SIGKILL" and out_of_memory is None:
        hint = ", probably out of memory"
    return f"{who} was killed by {name}{at}{hint}, and mpiexec ended the other ranks"


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
