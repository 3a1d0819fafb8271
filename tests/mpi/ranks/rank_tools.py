"""What several checks need."""

import os
import signal
import threading
import time
from contextlib import contextmanager

from nbmn.communicators import world


class Skip(Exception):
    """The check does not apply to this number of ranks."""


def need_ranks(comm, least):
    if comm.size < least:
        raise Skip(f"needs {least} ranks")


@contextmanager
def raises(kind, *texts):
    """Require an exception whose message contains all of ``texts``."""
    try:
        yield
    except kind as error:
        missing = [text for text in texts if text not in str(error)]
        if missing:
            raise AssertionError(f"{missing} not in {error!r}") from error
    else:
        raise AssertionError(f"no {kind.__name__}")


def interrupt_when_waiting(operation, seen=None):
    """Send this process SIGINT as soon as its main thread waits in ``operation``."""

    def watch():
        give_up = time.monotonic() + 10
        while time.monotonic() < give_up:
            activity = world().activity()
            # A while after it began it is in the wait, rather than on the way there.
            waits = activity is not None and time.monotonic() - activity.since > 0.05
            if waits and activity.operation == operation:
                if seen is not None:
                    seen.append((activity, time.monotonic()))
                os.kill(os.getpid(), signal.SIGINT)
                return
            time.sleep(0.002)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return thread
