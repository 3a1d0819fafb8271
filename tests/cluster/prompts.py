"""A person at the debugger's prompt."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from notebook_kernel import Notebook, Ran

Typed = Callable[[str, Ran], "str | None"]
END_OF_INPUT = "\x04"


def typing(*lines: str, asked: list[str] | None = None) -> Typed:
    """A person who types these lines; what is asked after them is a failure."""
    left = list(lines)

    def typed(prompt: str, ran: Ran) -> str:
        if asked is not None:
            asked.append(prompt)
        # Else the test would wait for an answer for ever.
        return left.pop(0) if left else pytest.fail(f"asked once more; so far:\n{ran.text}")

    return typed


def stop_at_prompt(notebook: Notebook, code: str) -> tuple[Ran, list[str]]:
    """Run a cell and press the stop button when it asks; return how it ended, and what it asked."""
    asked: list[str] = []
    ran = notebook.run(
        code,
        interrupt_when=lambda: bool(asked),
        typed=lambda prompt, ran: asked.append(prompt),
        seconds=20,
    )
    return ran, asked
