"""Makes calls that may block on a thread of its own, so that the caller can be interrupted."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any


class Task:
    """A call that was handed over; local."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._over = threading.Event()
        self._result: Any = None
        self._error: BaseException | None = None

    def done(self, patience: float = 0.0) -> bool:
        """Say whether it is over, after waiting for ``patience`` seconds at most."""
        return self._over.wait(patience) if patience else self._over.is_set()

    def result(self) -> Any:
        """Return what the call returned, or raise what it raised; once it is done."""
        if self._error is not None:
            raise self._error
        return self._result

    def run(self) -> None:
        """Make the call."""
        try:
            self._result = self._call()
        except BaseException as error:  # noqa: BLE001 - raised in who asks for the result
            self._error = error
        self._call = _nothing  # and what it refers to
        self._over.set()


def _nothing() -> None:
    """Replace a call that was made."""


class Launcher:
    """Makes one call after the other.

    A thread that is stuck in a call is left behind: nothing waits for it at exit.
    """

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        threading.Thread(target=_serve, args=(self._calls,), name=name, daemon=True).start()

    def submit(self, call: Callable[[], Any]) -> Task:
        """Hand a call over; local, returns at once."""
        task = Task(call)
        self._calls.put(task)
        return task

    def close(self) -> None:
        """Let the thread end when it has made all calls."""
        self._calls.put(None)


def _serve(calls: queue.SimpleQueue[Task | None]) -> None:
    while (task := calls.get()) is not None:
        task.run()
        del task  # its result is not this thread's to keep


def aside(call: Callable[[], Any], name: str) -> Task:
    """Make one call on a thread of its own."""
    task = Task(call)
    threading.Thread(target=task.run, name=name, daemon=True).start()
    return task
