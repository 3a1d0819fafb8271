"""Asks in VS Code, whose input box is above the notebook and leaves nothing in it."""

from __future__ import annotations

import time

INSTANT = 0.1
"""Seconds in which nobody reads a prompt and answers it."""
PAUSE = 1.0
"""Seconds until the person is asked once more."""
TRIES = 5


def ask(prompt: str) -> str:
    """A line that the person typed, which then is shown below the cell.

    After a cell was stopped while its box was open, later boxes may close by themselves with
    nothing typed. For a debugger that would mean the last command, again and again.

    Raises
    ------
    EOFError
        No box stayed open.
    KeyboardInterrupt
        The person pressed the stop button.
    """
    for _ in range(TRIES):
        asked = time.monotonic()
        line = input(prompt)
        if line or time.monotonic() - asked > INSTANT:
            print(f"{prompt}{line}", flush=True)
            return line
        time.sleep(PAUSE)
    print("the input box closes by itself: reload the window of VS Code, then debug again")
    raise EOFError
