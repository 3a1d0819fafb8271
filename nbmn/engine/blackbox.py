"""What a rank leaves behind when it falls silent: the stacks at that moment.

Native code that holds the interpreter keeps the reporter thread from running, and so from
telling anything. But Python's own watchdog needs no interpreter: unless the reporter
comes by in time, it writes all stacks to a file in memory, which the
notebook reads through ``/proc``. No signal is sent, none can disturb that code.
"""

from __future__ import annotations

import faulthandler
import os

PATIENCE = 1.2
"""Seconds of silence after which the stacks are written."""


class BlackBox:
    """Writes stacks when :meth:`alive` was not called for :data:`PATIENCE` seconds. Linux."""

    def __init__(self) -> None:
        self.descriptor = -1
        """Of the file; -1 where the system has none such."""
        if hasattr(os, "memfd_create"):
            import fcntl

            self.descriptor = os.memfd_create("nbmn-stacks")
            flags = fcntl.fcntl(self.descriptor, fcntl.F_GETFL)
            # So that a file that was emptied begins at its beginning.
            fcntl.fcntl(self.descriptor, fcntl.F_SETFL, flags | os.O_APPEND)

    def alive(self) -> None:
        """Put the moment off."""
        if self.descriptor >= 0:
            os.ftruncate(self.descriptor, 0)
            faulthandler.dump_traceback_later(PATIENCE, file=self.descriptor)
