"""The processes of a cluster, and their end."""

from __future__ import annotations

import socket
from collections.abc import Sequence
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


def find_process(info: RankInfo) -> psutil.Process | None:
    """The process of a rank on this host; None on another, or where it has gone already."""
    if info.host != socket.gethostname():
        return None
    try:
        return psutil.Process(info.pid)
    except psutil.NoSuchProcess:
        return None


def has_ended(process: psutil.Process | None) -> bool:
    """Whether a process was there and is no more. Takes some 50 µs."""
    if process is None:
        return False
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
