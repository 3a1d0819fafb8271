"""Starts ranks and waits until a cell would work on them."""

from __future__ import annotations

import functools
import shutil
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from ipyparallel import AsyncResult, Client
from ipyparallel.error import CompositeError, RemoteError

from nbmn.cluster.errors import StartError
from nbmn.cluster.launch import Plan, check, find_mpiexec, make_cluster
from nbmn.cluster.listener import Listener
from nbmn.cluster.processes import Headcount, count_ranks, processes_of, shut_down, uninterrupted
from nbmn.cluster.session import Session
from nbmn.cluster.tables import StartProgress
from nbmn.engine.bootstrap import become_rank
from nbmn.messages import RankInfo
from nbmn.ranks import name_ranks

SHARED_MEMORY = "/dev/shm"
SHARED_PER_RANK = 2_000_000
"""Bytes there that MPICH takes for a rank, rounded up."""

OnProgress = Callable[[StartProgress], None]


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
        _await_lines(listener, cluster, plan)
        return Session(plan, cluster, client, listener, infos)
    except BaseException:
        uninterrupted(functools.partial(_undo, cluster, client, listener))
        raise


class RollCall:
    """Notices that there are fewer ranks than there were: mpiexec may be stuck as well."""

    PERIOD = 1.0
    """Seconds between two counts; only two in a row tell, for forks come and go."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._complete = False
        self._short = 0
        self._counted = 0.0

    def is_short(self, now: float, count: Callable[[], Headcount]) -> bool:
        """Whether a rank on this host has ended; counts now and then."""
        if now - self._counted >= self.PERIOD:
            self._counted, here = now, count()
            self._complete |= here.alive + here.ended >= self._ranks
            short = self._complete and here.alive < self._ranks
            self._short = self._short + 1 if short else 0
        return self._short >= 2


def _undo(cluster: Any, client: Client | None, listener: Listener) -> None:
    if client is not None:
        client.close()
    if cluster is not None:
        shut_down(cluster, processes_of(cluster))
    listener.close()


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
    roll = RollCall(plan.ranks)
    while not ready.done():
        count = len(client.ids)
        if count != shown:
            shown, deadline = count, time.monotonic() + plan.timeout
            progress(StartProgress(plan.ranks, frozenset(client.ids), step="loading ranks"))
        _require_running(cluster)
        if roll.is_short(time.monotonic(), lambda: count_ranks(cluster)):
            raise StartError(
                "a rank ended while it started, and mpiexec did not notice. "
                f"The ranks' log ends:\n{_log_tail(cluster)}"
            )
        if time.monotonic() > deadline:
            raise StartError(
                f"{count} of {plan.ranks} ranks came up and no more did for {plan.timeout:g} s. "
                f"The ranks' log ends:\n{_log_tail(cluster)}"
            )
        time.sleep(0.02)
    if ready.exception():
        _require_running(cluster)
        raise StartError(f"the ranks did not start: {ready.exception()}")


def _await_lines(listener: Listener, cluster: Any, plan: Plan) -> None:
    """Wait until every rank was heard: an interrupt sent before that would be lost."""
    deadline = time.monotonic() + plan.timeout
    while len(listener.beats) < plan.ranks:
        _require_running(cluster)
        if time.monotonic() > deadline:
            silent = name_ranks(set(range(plan.ranks)) - set(listener.beats))
            raise StartError(
                f"{silent} cannot reach the notebook at {listener.endpoint.url}; "
                "a firewall between the hosts?"
            )
        time.sleep(0.005)


def _require_running(cluster: Any) -> None:
    for launcher in cluster.engines.values():
        if launcher.state == "after":
            code = (launcher.stop_data or {}).get("exit_code")
            raise StartError(
                f"mpiexec ended (exit code {code}) before the ranks were ready. "
                f"{_scarcity(cluster.n)}Its log ends:\n{_log_tail(cluster)}"
            )
    if cluster.controller is not None and cluster.controller.state == "after":
        raise StartError(
            f"ipyparallel's controller ended:\n{_tail(cluster.controller.get_output())}"
        )


def _scarcity(ranks: int) -> str:
    """What :func:`scarcity` says here."""
    try:
        return scarcity(shutil.disk_usage(SHARED_MEMORY).free, ranks)
    except OSError:  # a system without it
        return ""


def scarcity(free: int, ranks: int) -> str:
    """Say so where too little memory, in bytes, is left for MPI to connect ranks by."""
    if free >= SHARED_PER_RANK * ranks:
        return ""
    return (
        f"{SHARED_MEMORY} has {free / 1e6:.1f} MB left, and MPI needs about "
        f"{SHARED_PER_RANK * ranks / 1e6:.0f} MB there for {ranks} rank{'s' * (ranks > 1)}: remove "
        "what programs that were killed have left in it, or give a container more "
        "(docker run --shm-size=1g). "
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
