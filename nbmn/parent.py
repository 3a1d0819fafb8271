"""End with the notebook: engines and controller must not outlive the kernel that started them.

The notebook leaves its host, pid and start time in the environment; a daemon
thread in each child looks for that process. The start time tells a reused pid
from the real parent. On another host the pid means nothing: there the rank
watches the notebook's pings instead (see :mod:`nbmn.engine.reporter`).
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import psutil

VARIABLE = "NBMN_NOTEBOOK"
PERIOD = 0.5
"""Seconds between two looks at the parent."""


@dataclass(frozen=True, slots=True)
class Parent:
    """The notebook process."""

    host: str
    pid: int
    started: float
    """Seconds since the epoch, as psutil gives it."""

    def encode(self) -> str:
        return f"{self.host}/{self.pid}/{self.started!r}"

    @classmethod
    def decode(cls, text: str) -> Parent:
        host, pid, started = text.rsplit("/", 2)
        return cls(host, int(pid), float(started))

    @property
    def is_local(self) -> bool:
        return self.host == socket.gethostname()

    def is_alive(self) -> bool:
        """Whether the process still runs; meaningful on its own host only."""
        try:
            process = psutil.Process(self.pid)
            same = abs(process.create_time() - self.started) < 1.0
            return same and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False


def this_process() -> Parent:
    """This process, to be handed to children through the environment."""
    return Parent(socket.gethostname(), os.getpid(), psutil.Process().create_time())


def watch_from_environment(last: Callable[[], None] = lambda: None) -> None:
    """Start the watching thread, if the environment names a parent on this host.

    Parameters
    ----------
    last
        Called before this process ends for want of its parent.
    """
    text = os.environ.get(VARIABLE)
    if not text:
        return
    parent = Parent.decode(text)
    if parent.is_local:
        threading.Thread(
            target=_watch, args=(parent, last), name="nbmn-parent", daemon=True
        ).start()


def _watch(parent: Parent, last: Callable[[], None]) -> None:
    while parent.is_alive():
        time.sleep(PERIOD)
    try:
        last()
    finally:
        # No clean-up: an engine may be stuck in native code, and nobody is left to read a message.
        os._exit(1)
