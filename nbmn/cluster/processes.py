"""The processes of a cluster, and their end."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import psutil

from nbmn.cluster.wait_status import first_to_go, status_of
from nbmn.messages import RankInfo

KILL_AFTER = 3.0
"""Seconds that processes have to end by themselves."""


def processes_of(cluster: Any) -> list[psutil.Process]:
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


def count_ranks(cluster: Any) -> int:
    """How many ranks of the cluster run on this host."""
    launched = [launcher.process for launcher in cluster.engines.values()]
    count = 0
    for process in processes_of(cluster):
        try:
            count += "nbmn.engine" in process.cmdline() and process not in launched  # mpiexec
        except psutil.NoSuchProcess:
            continue
    return count


def uninterrupted(work: Callable[[], None]) -> None:
    """Do work to its end, whatever the person presses; a KeyboardInterrupt is raised after it."""
    thread = threading.Thread(target=work, name="nbmn-cleanup")
    thread.start()
    pressed: KeyboardInterrupt | None = None
    while thread.is_alive():
        try:
            thread.join()
        except KeyboardInterrupt as interrupt:
            pressed = interrupt
    if pressed is not None:
        raise pressed


def shut_down(cluster: Any, processes: Sequence[psutil.Process]) -> None:
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


class Watch:
    """Notes which rank on this host ends first, where the system can tell (Linux).

    mpiexec says nothing of a rank that calls ``os._exit``, and ends all others
    within milliseconds. The thread sleeps until there is something to note.
    """

    def __init__(self, ranks: Sequence[RankInfo]) -> None:
        self.left: Mapping[int, int | None] = {}
        """Ranks that ended before all others, with their wait status where the system
        knows it; several when they were not told apart."""
        self.left_at: float | None = None
        """When they did (``time.monotonic``)."""
        self._ranks: dict[int, int] = {}
        self._processes = {info.rank: process for info in ranks if (process := _process(info))}
        for info in ranks:
            descriptor = _open(info)
            if descriptor is not None:
                self._ranks[descriptor] = info.rank
        threading.Thread(target=self._run, name="nbmn-processes", daemon=True).start()

    def kill(self, ranks: Iterable[int]) -> list[int]:
        """Kill ranks that are on this host; returns which those are."""
        killed = []
        for rank in ranks:
            process = self._processes.get(rank)
            if process is not None:
                # psutil makes sure that it is still the same process.
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
                killed.append(rank)
        return killed

    def _run(self) -> None:
        poll = select.poll()
        for descriptor in self._ranks:
            poll.register(descriptor, select.POLLIN)
        first = [descriptor for descriptor, _ in poll.poll()] if self._ranks else []
        statuses = {rank: status_of(descriptor) for descriptor, rank in self._ranks.items()}
        if all(statuses[self._ranks[d]] is None for d in first):
            # Too late to be told how they ended; one about to end has perhaps ended since.
            first = [descriptor for descriptor, _ in poll.poll(0)]
        self.left = first_to_go({self._ranks[d] for d in first}, statuses)
        self.left_at = time.monotonic() if first else None
        for descriptor in self._ranks:
            os.close(descriptor)


def _process(info: RankInfo) -> psutil.Process | None:
    """A rank's process, if it is on this host."""
    if info.host != socket.gethostname():
        return None
    try:
        return psutil.Process(info.pid)
    except psutil.NoSuchProcess:
        return None


def _open(info: RankInfo) -> int | None:
    """A descriptor that can be read once the process has ended."""
    if info.host != socket.gethostname() or not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(info.pid)
    except OSError:
        return None
