"""The processes of a cluster, and their end."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psutil

from nbmn.cluster.files import remove_files
from nbmn.cluster.wait_status import first_to_go, status_of
from nbmn.messages import RankInfo

KILL_AFTER = 3.0
"""Seconds that processes have to end by themselves."""


@dataclass(frozen=True, slots=True)
class Headcount:
    """Ranks of a cluster on this host."""

    alive: int
    ended: int
    """Ended, and mpiexec has not taken note of it."""


def processes_of(cluster: Any) -> list[psutil.Process]:
    """All processes of the cluster on this host."""
    launchers = [cluster.controller, *cluster.engines.values()]
    return [process for launcher in launchers for process in _launched(launcher)]


def count_ranks(cluster: Any) -> Headcount:
    """Count the ranks of the cluster on this host."""
    ranks: set[int] = set()
    ended: list[psutil.Process] = []
    for launcher in cluster.engines.values():
        for process in _launched(launcher)[1:]:  # the first is mpiexec
            try:
                if "nbmn.engine" in process.cmdline():
                    ranks.add(process.pid)
            except psutil.ZombieProcess:
                ended.append(process)
            except psutil.NoSuchProcess:
                continue
    parents = [_parent(process) for process in ended]
    return Headcount(len(ranks), sum(parent not in {None, *ranks} for parent in parents))


def _launched(launcher: Any) -> list[psutil.Process]:
    """What ipyparallel has launched, and all below it."""
    process = getattr(launcher, "process", None)
    if process is None:
        return []
    try:
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _parent(process: psutil.Process) -> int | None:
    try:
        return process.ppid()
    except psutil.NoSuchProcess:
        return None


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
    """Ask politely through ipyparallel, then make sure; no file or thread of it is left."""
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
        _end_loop(cluster)
        remove_files(cluster.profile_dir, cluster.cluster_id)


def _end_loop(cluster: Any) -> None:
    """End the thread that ipyparallel runs for a cluster, and would for ever."""
    # Should ipyparallel have something left to do, it starts another.
    thread, cluster._async_thread = cluster._async_thread, None
    if thread is not None:
        loop = cluster._thread_loop
        loop.add_callback(loop.stop)
        thread.join(KILL_AFTER)
        if not thread.is_alive():
            loop.close()


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
        here = [info for info in ranks if info.host == socket.gethostname()]
        self._processes = {info.rank: process for info in here if (process := _process(info))}
        self._ends = {info.rank: end for info in here if (end := _open(info.pid)) is not None}
        self._lines = {
            line: info.rank
            for info in here
            if info.rank in self._ends and (line := _lifeline(info)) is not None
        }
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
        if self._ends:
            self.left = self._first()
            self.left_at = time.monotonic()
        for descriptor in (*self._ends.values(), *self._lines):
            os.close(descriptor)

    def _first(self) -> dict[int, int | None]:
        """Wait until a rank ends; return which was the first."""
        ends = {descriptor: rank for rank, descriptor in self._ends.items()}
        with select.epoll() as events:
            for line in self._lines:
                events.register(line, select.EPOLLHUP)
            for descriptor in ends:
                events.register(descriptor, select.EPOLLIN)
            while True:
                # What happened first is told first, however late this thread is.
                ((descriptor, _),) = events.poll(maxevents=1)
                rank = self._lines.get(descriptor)
                if rank is None:
                    return self._by_statuses(ends)
                if _is_over(self._ends[rank]):
                    return {rank: status_of(self._ends[rank])}
                events.unregister(descriptor)  # it has closed what is not its own

    def _by_statuses(self, ends: Mapping[int, int]) -> dict[int, int | None]:
        """Tell by how ranks ended, where nothing tells when they began to."""
        poll = select.poll()
        for descriptor in ends:
            poll.register(descriptor, select.POLLIN)
        first = [descriptor for descriptor, _ in poll.poll(0)]
        statuses = {rank: status_of(descriptor) for descriptor, rank in ends.items()}
        if all(statuses[ends[d]] is None for d in first):
            # Too late to be told how they ended; one about to end has perhaps ended since.
            first = [descriptor for descriptor, _ in poll.poll(0)]
        return first_to_go({ends[d] for d in first}, statuses)


def _is_over(end: int) -> bool:
    """Whether a process that has closed its descriptors ends."""
    poll = select.poll()
    poll.register(end, select.POLLIN)
    return bool(poll.poll(1000 * KILL_AFTER))


def _process(info: RankInfo) -> psutil.Process | None:
    """The process of a rank of this host, if it is still there."""
    try:
        return psutil.Process(info.pid)
    except psutil.NoSuchProcess:
        return None


def _open(pid: int) -> int | None:
    """A descriptor that can be read once the process has ended."""
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def _lifeline(info: RankInfo) -> int | None:
    """This process's end of the rank's lifeline."""
    try:
        return os.open(f"/proc/{info.pid}/fd/{info.lifeline}", os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return None
