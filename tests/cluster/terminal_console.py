"""A real ``jupyter console``, or IPython, in a terminal of its own, driven as a person does."""

from __future__ import annotations

import os
import re
import sys
import time
from pathlib import Path

import pexpect
from notebook_kernel import ANSI

from nbmn.cluster.terminal import settle

PASTE = "\x1b[200~{}\x1b[201~"
RUN = "\x1b\r"
"""Alt and Enter: runs a cell of several lines."""
CTRL_C = "\x03"


class Console:
    """A terminal in which it runs."""

    def __init__(self, home: Path, program: str = "jupyter_console") -> None:
        environment = {
            **os.environ,
            "IPYTHONDIR": str(home / "ipython"),
            "JUPYTER_CONFIG_DIR": str(home / "config"),
            "PROMPT_TOOLKIT_NO_CPR": "1",  # asks the terminal, which is none, where the cursor is
            "PYDEVD_DISABLE_FILE_VALIDATION": "1",  # a warning, sometimes, into the first cell
            "TERM": "xterm-256color",
        }
        self._process = pexpect.spawn(
            sys.executable, ["-m", program], env=environment, dimensions=(50, 160), encoding="utf-8"
        )
        self._written = ""
        self._next = 1
        self.wait(r"In \[1\]: $", 60)

    @property
    def screen(self) -> str:
        """All that was shown, as a person scrolling up reads it, without colours."""
        return ANSI.sub("", settle(self._written))

    def wait(self, pattern: str, seconds: float = 30) -> None:
        """Wait until the pattern is on the screen."""
        deadline = time.monotonic() + seconds
        while not re.search(pattern, self.screen):
            left = deadline - time.monotonic()
            assert left > 0, f"no {pattern!r} within {seconds} s:\n{self.screen}"
            try:
                self._written += self._process.read_nonblocking(65536, timeout=left)
            except pexpect.TIMEOUT:
                continue

    def type(self, text: str) -> None:
        """Press keys."""
        self._process.send(text)

    def start(self, cell: str) -> None:
        """Run a cell without waiting for its end."""
        self.type(PASTE.format(cell) + RUN)

    def answer(self, line: str, expect: str) -> None:
        """Type a line at a prompt below the running cell, and wait for what follows it."""
        self.wait(r"ipdb> $")
        self.type(f"{line}\r")
        self.wait(rf"ipdb> {re.escape(line)}\n(.*\n)*{expect}")

    def end(self) -> str:
        """Wait for the end of the running cell; what is below it."""
        self.wait(rf"In \[{self._next + 1}\]: $", 60)
        first, last = (self.screen.rindex(f"In [{self._next + i}]: ") for i in (0, 1))
        self._next += 1
        _, _, below = self.screen[first:last].partition("\n")
        return re.sub(r"^( *\.\.\.:.*\n)*", "", below).strip()

    def run(self, cell: str) -> str:
        """Run a cell; what is below it."""
        self.start(cell)
        return self.end()

    def close(self) -> None:
        """Leave, which ends the kernel."""
        self._process.close(force=True)
