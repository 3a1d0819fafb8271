"""The one way to wait for the other ranks."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from nbmn.communicators.errors import CollectiveTimeoutError

YIELD = 300e-6
SHORTEST_PAUSE = 20e-6
LONGEST_PAUSE = 10e-3
MOVED_DATA = 10e-6


def wait(
    test: Callable[[], bool],
    timeout: float | None = None,
    what: str = "the other ranks",
    nap: Callable[[float], object] = time.sleep,
) -> None:
    """Call ``test`` until it returns true; local.

    Spins for a moment, in which it yields the core to whoever wants it (where nobody does, that
    is as fast), then sleeps, for a sixteenth of the time already waited, 10 ms at most: short
    waits end at once, long ones leave the core to the rank that everyone waits for.

    Parameters
    ----------
    test
        Makes progress and says whether the operation is complete (``Request.Test``).
    timeout
        Seconds after which to give up; None waits for ever.
    what
        What is waited for, for the error message.
    nap
        Sleeps for so many seconds, or less: until there is reason to call ``test``.

    Raises
    ------
    KeyboardInterrupt
        SIGINT arrived; it is seen at once.
    CollectiveTimeoutError
        ``timeout`` seconds went by.
    """
    if test():
        return
    clock, work = time.monotonic, time.thread_time
    begin = idle_since = before = clock()
    worked: float | None = None
    while not test():
        now = clock()
        if timeout is not None and now - begin > timeout:
            raise CollectiveTimeoutError(f"waited {timeout:g} s for {what}")
        if worked is not None:
            # MPI moves large messages inside test(), a piece per call: sleeping between
            # pieces would throttle the transfer.
            done = work()
            if done - worked > MOVED_DATA:
                idle_since, worked, before = now, done, now
                continue
            worked = None
        elif now - before > MOVED_DATA:
            # One long call says nothing: this process may have lost its core, and after a
            # sleep all calls are. So look at once at how much the next one does.
            worked, before = work(), now
            continue
        idle = now - idle_since
        if idle > YIELD:
            nap(min(max(idle / 16, SHORTEST_PAUSE), LONGEST_PAUSE))
        else:
            os.sched_yield()
        before = clock()
