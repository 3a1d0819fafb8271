"""The processes of a cluster, and their end."""

from __future__ import annotations

import enum
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import psutil

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
        self.left: tuple[int, ...] = ()
        """Ranks that ended before all others; several when they were not told apart."""
        self.left_at: float | None = None
        """When they did (``time.monotonic``)."""
        self._ranks: dict[int, int] = {}
        for info in ranks:
            descriptor = _open(info)
            if descriptor is not None:
                self._ranks[descriptor] = info.rank
        threading.Thread(target=self._run, name="nbmn-processes", daemon=True).start()

    def _run(self) -> None:
        poll = select.poll()
        for descriptor in self._ranks:
            poll.register(descriptor, select.POLLIN)
        first = [descriptor for descriptor, _ in poll.poll()] if self._ranks else []
        self.left = first_to_go({self._ranks[d]: ending_of(d, d in first) for d in self._ranks})
        self.left_at = time.monotonic() if first else None
        for descriptor in self._ranks:
            os.close(descriptor)


class Ending(enum.IntEnum):
    """What the system knows of a process's end; whom to blame first comes first."""

    BY_ITSELF = 0
    UNKNOWN = 1
    """It has left no trace."""
    KILLED = 2
    """By a signal, as mpiexec ends the others."""
    NONE = 3
    """It lives."""


def first_to_go(endings: Mapping[int, Ending]) -> tuple[int, ...]:
    """Ranks that the others followed; several when they cannot be told apart.

    Their order tells nothing: one that began to exit, so that mpiexec killed the others,
    may come to its end after those.
    """
    least = min(endings.values(), default=Ending.NONE)
    return tuple(sorted(r for r, ending in endings.items() if ending == least != Ending.NONE))


def ending_of(descriptor: int, ended: bool) -> Ending:
    """The state of the process of a pidfd, which may be just about to exit."""
    otherwise = Ending.UNKNOWN if ended else Ending.NONE
    try:
        with open(f"/proc/self/fdinfo/{descriptor}") as file:
            pid = next(int(line.split()[1]) for line in file if line.startswith("Pid:"))
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        flags, code = int(fields[6]), int(fields[49])  # see proc(5)
    except (OSError, StopIteration, ValueError, IndexError):
        return otherwise
    if not flags & _PF_EXITING:
        return otherwise
    return Ending.KILLED if os.WIFSIGNALED(code) else Ending.BY_ITSELF


_PF_EXITING = 0x4  # include/linux/sched.h


def _open(info: RankInfo) -> int | None:
    """A descriptor that can be read once the process has ended."""
    if info.host != socket.gethostname() or not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(info.pid)
    except OSError:
        return None
