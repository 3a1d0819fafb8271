"""Who died of what, from what mpiexec printed. Pure."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence

from nbmn.cluster.ranks import name_ranks
from nbmn.messages import RankInfo

_MPICH_DEATH = re.compile(r"PID (\d+) RUNNING AT.*?EXIT CODE: (\d+)", re.DOTALL)
_OPENMPI_DEATH = re.compile(r"rank (\d+) with PID (\d+) .*?exited on\s+signal (\d+)", re.DOTALL)


def cause(logs: str, ranks: Sequence[RankInfo]) -> str:
    """Who died of what, as far as mpiexec said."""
    by_pid = {info.pid: info.rank for info in ranks}
    match = _MPICH_DEATH.search(logs)
    if match:
        pid, code = map(int, match.groups())
        return _obituary(by_pid.get(pid), pid, code)
    match = _OPENMPI_DEATH.search(logs)
    if match:
        rank, pid, code = map(int, match.groups())
        return _obituary(by_pid.get(pid, rank), pid, code)
    return "the ranks have ended"


def _obituary(rank: int | None, pid: int, code: int) -> str:
    who = f"{name_ranks([rank])} (pid {pid})" if rank is not None else f"the process {pid}"
    try:
        name = signal.Signals(code).name
    except ValueError:
        return f"{who} exited with code {code}, and the other ranks with it"
    hint = ", probably by the kernel for want of memory" if name == "SIGKILL" else ""
    return f"{who} was killed by {name}{hint}, and mpiexec ended the other ranks"


def exit_of(ranks: Sequence[int]) -> str:
    """What to say of ranks that left without an error."""
    return f"{name_ranks(ranks)} exited, as by os._exit(0), and the other ranks are of no use"
