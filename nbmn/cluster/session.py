"""The one running set of ranks of a notebook: start, run cells, stop."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import psutil
from ipyparallel import AsyncResult, Client
from ipyparallel.error import CompositeError, RemoteError

from nbmn.cluster.area import Area
from nbmn.cluster.cells import CellRun
from nbmn.cluster.errors import ClusterError, NoRanksError, StartError
from nbmn.cluster.launch import Plan, check, find_mpiexec, make_cluster
from nbmn.cluster.listener import Listener
from nbmn.cluster.ranks import name_ranks
from nbmn.cluster.tables import StartProgress
from nbmn.engine.bootstrap import become_rank, renew_communicators
from nbmn.engine.cells import run_cell
from nbmn.messages import CellRequest, RankInfo

KILL_AFTER = 3.0
"""Seconds that processes have to end by themselves."""

OnProgress = Callable[[StartProgress], None]


class Session:
    """Running ranks. Made by :func:`start`; of no use after :meth:`stop`."""

    def __init__(
        self,
        plan: Plan,
        cluster: Any,
        client: Client,
        listener: Listener,
        ranks: Sequence[RankInfo],
    ) -> None:
        self.plan = plan
        self.ranks = tuple(sorted(ranks, key=lambda info: info.rank))
        self.listener = listener
        self._cluster = cluster
        self._client = client
        self._runs = itertools.count(1)
        self._active: list[CellRun] = []
        self._stale = False
        self._stopped = False

    @property
    def size(self) -> int:
        return len(self.ranks)

    # Cells.

    def submit(
        self, code: str, ranks: Sequence[int], label: str, area: Area, keep: bool = False
    ) -> CellRun:
        """Send a cell to ranks and return at once.

        Raises
        ------
        NoRanksError
            The ranks are gone.
        """
        self.require_alive()
        self._renew_if_stale()
        request = CellRequest(code, label, f"{label}#{next(self._runs)}", keep)
        pending = {rank: self.call(rank, run_cell, request) for rank in ranks}
        run = CellRun(request, pending, self.listener, area, self.death, self._ended)
        self._active.append(run)
        return run

    def call(self, rank: int, function: Callable[..., Any], *args: Any) -> AsyncResult:
        """Call an importable function on one rank; returns at once."""
        return self._client[self.ranks[rank].engine].apply_async(function, *args)

    def call_all(self, function: Callable[..., Any], *args: Any) -> list[AsyncResult]:
        """Call an importable function on every rank, in rank order; returns at once."""
        return [self.call(info.rank, function, *args) for info in self.ranks]

    @property
    def active(self) -> tuple[CellRun, ...]:
        """Cells that have not ended."""
        return tuple(run for run in self._active if not run.done())

    def require_idle(self, ranks: Sequence[int]) -> None:
        """Make sure ranks live, run no cell and have whole communicators.

        Raises
        ------
        ClusterError
            A cell in the background still runs on one of them.
        """
        self.require_alive()
        for run in self.active:
            busy = sorted(set(run.ranks) & set(ranks))
            if busy:
                raise ClusterError(
                    f"{name_ranks(busy)} still run cell {run.request.label} in the background; "
                    "wait for it, or interrupt it"
                )
        self._renew_if_stale()

    def _ended(self, run: CellRun) -> None:
        self._active.remove(run)
        if run.failed or run.interrupted:
            self._stale = True

    def _renew_if_stale(self) -> None:
        """After a failure or interrupt, and once nothing runs, renew the communicators."""
        if not self._stale or self.active:
            return
        for pending in self.call_all(renew_communicators):
            pending.get(timeout=30)
        self._stale = False

    # Life.

    def death(self) -> str | None:
        """Why the ranks are gone; None while they live."""
        if self._stopped:
            return "the ranks were stopped"
        launchers = list(self._cluster.engines.values())
        if launchers and all(launcher.running for launcher in launchers):
            return None
        logs = "".join(launcher.get_output() for launcher in launchers)
        return f"{_cause(logs, self.ranks)}. %mn_restart starts {self.size} new ranks"

    def require_alive(self) -> None:
        """Raise unless the ranks can take a cell.

        Raises
        ------
        NoRanksError
            With what became of them.
        """
        reason = self.death()
        if reason:
            raise NoRanksError(reason)

    def stop(self) -> None:
        """End ranks and controller; returns when no process of theirs is left."""
        if self._stopped:
            return
        self._stopped = True
        processes = _processes(self._cluster, self.ranks)
        self._client.close()
        _shut_down(self._cluster, processes)
        self.listener.close()


def start(plan: Plan, progress: OnProgress = lambda now: None) -> Session:
    """Start ranks and wait until a cell would work on them.

    Parameters
    ----------
    plan
        How many, and how.
    progress
        Called as the start goes on.

    Raises
    ------
    StartError
        With the reason; no process is left. The same holds for a
        KeyboardInterrupt while it starts.
    """
    check(plan)
    mpiexec = find_mpiexec()
    listener = Listener()
    cluster: Any = None
    client: Client | None = None
    try:
        cluster = make_cluster(plan, mpiexec)
        client = _launch(cluster, plan)
        _await_engines(cluster, client, plan, progress)
        engines = list(client.ids)
        share = plan.share_gpus
        pending = {
            engine: client[engine].apply_async(become_rank, listener.endpoint, share)
            for engine in engines
        }
        infos: list[RankInfo] = []
        for engine, result in pending.items():
            infos.append(replace(_introduction(cluster, result, plan), engine=engine))
            ready = frozenset(info.rank for info in infos)
            progress(StartProgress(plan.ranks, frozenset(engines), ready, "connecting ranks"))
        return Session(plan, cluster, client, listener, infos)
    except BaseException:
        if client is not None:
            client.close()
        if cluster is not None:
            _shut_down(cluster, _processes(cluster, ()))
        listener.close()
        raise


def _launch(cluster: Any, plan: Plan) -> Client:
    """Start both processes at once, then wait for the controller only."""
    try:
        cluster.start_controller_sync()
        cluster.start_engines_sync(plan.ranks)
        return cluster.connect_client_sync()
    except (OSError, RuntimeError, TimeoutError) as error:
        _require_running(cluster)
        raise StartError(f"ipyparallel's controller did not start: {error}") from error


def _await_engines(cluster: Any, client: Client, plan: Plan, progress: OnProgress) -> None:
    ready: Future[None] = client.wait_for_engines(plan.ranks, block=False, interactive=False)
    deadline = time.monotonic() + plan.timeout
    shown = -1
    while not ready.done():
        count = len(client.ids)
        if count != shown:
            shown, deadline = count, time.monotonic() + plan.timeout
            progress(StartProgress(plan.ranks, frozenset(client.ids), step="loading ranks"))
        _require_running(cluster)
        if time.monotonic() > deadline:
            raise StartError(
                f"{count} of {plan.ranks} ranks came up and no more did for {plan.timeout:g} s. "
                f"The ranks' log ends:\n{_log_tail(cluster)}"
            )
        time.sleep(0.02)
    if ready.exception():
        _require_running(cluster)
        raise StartError(f"the ranks did not start: {ready.exception()}")


def _require_running(cluster: Any) -> None:
    for launcher in cluster.engines.values():
        if launcher.state == "after":
            code = (launcher.stop_data or {}).get("exit_code")
            raise StartError(
                f"mpiexec ended (exit code {code}) before the ranks were ready. "
                f"Its log ends:\n{_log_tail(cluster)}"
            )
    if cluster.controller is not None and cluster.controller.state == "after":
        raise StartError(
            f"ipyparallel's controller ended:\n{_tail(cluster.controller.get_output())}"
        )


def _introduction(cluster: Any, result: AsyncResult, plan: Plan) -> RankInfo:
    deadline = time.monotonic() + plan.timeout
    while not result.ready():
        _require_running(cluster)
        if time.monotonic() > deadline:
            raise StartError(
                "a rank loaded but made no communicator; MPI cannot connect the ranks here.\n"
                + _log_tail(cluster)
            )
        result.wait(0.02)
    try:
        return result.get()
    except (RemoteError, CompositeError) as error:
        raise StartError(f"a rank could not start: {error.ename}: {error.evalue}") from error


def _log_tail(cluster: Any) -> str:
    return _tail("".join(launcher.get_output() for launcher in cluster.engines.values()))


def _tail(text: str, lines: int = 25) -> str:
    return "\n".join(text.rstrip().splitlines()[-lines:])


_MPICH_DEATH = re.compile(r"PID (\d+) RUNNING AT.*?EXIT CODE: (\d+)", re.DOTALL)
_OPENMPI_DEATH = re.compile(r"rank (\d+) with PID (\d+) .*?exited on\s+signal (\d+)", re.DOTALL)


def _cause(logs: str, ranks: Sequence[RankInfo]) -> str:
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
    import signal

    who = f"{name_ranks([rank])} (pid {pid})" if rank is not None else f"the process {pid}"
    try:
        name = signal.Signals(code).name
    except ValueError:
        return f"{who} exited with code {code}, and the other ranks with it"
    hint = ", probably by the kernel for want of memory" if name == "SIGKILL" else ""
    return f"{who} was killed by {name}{hint}, and mpiexec ended the other ranks"


def _processes(cluster: Any, ranks: Sequence[RankInfo]) -> list[psutil.Process]:
    """All processes of the cluster on this host."""
    found: list[psutil.Process] = []
    launchers = [cluster.controller, *cluster.engines.values()]
    for launcher in launchers:
        process = getattr(launcher, "process", None)
        if process is not None:
            try:
                found += [process, *process.children(recursive=True)]
            except psutil.NoSuchProcess:
                continue
    return found


def _shut_down(cluster: Any, processes: Sequence[psutil.Process]) -> None:
    """Ask politely through ipyparallel, then make sure."""
    try:
        cluster.stop_cluster_sync()
    finally:
        _, alive = psutil.wait_procs(processes, timeout=KILL_AFTER)
        for process in alive:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(alive, timeout=KILL_AFTER)
