"""Where a rank that cannot answer writes its stack.

Native code that holds the interpreter keeps the reporter thread from running. But a signal
handler in C needs no interpreter: it writes the main thread's stack to a file in memory,
which the notebook reads through ``/proc`` (:mod:`nbmn.debug.probe`). So does Python's own
handler when native code crashes (:mod:`nbmn.debug.crashes`).

Not by Python's watchdog thread, which would need no signal: it reads the stack of a thread
that runs, and now and then crashes the process.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys

SIGNAL = getattr(signal, "SIGRTMIN", 0) + 13
"""One that nothing else uses."""
FILE = "nbmn-stack"
"""The file's name."""
CRASH = "Fatal Python error: "
"""How Python begins what it writes in a crash."""


def install() -> int:
    """Write the stack in a crash, and whenever :data:`SIGNAL` comes; returns the file's descriptor.

    Local. -1 where the system has no such files (Linux has).
    """
    if not sys.platform.startswith("linux"):
        return -1
    import fcntl

    descriptor = os.memfd_create(FILE)
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    # So that a file that was emptied begins at its beginning.
    fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_APPEND)
    faulthandler.enable(descriptor, all_threads=False)
    faulthandler.register(SIGNAL, file=descriptor, all_threads=False)
    return descriptor
