"""Whom the reporter's thread asks what the main thread does, did, and waits for."""

from __future__ import annotations

from typing import Protocol

from nbmn.records import Busy, Frame, Timeline, Wait


class Lookout(Protocol):
    """Tells what the main thread does; as :class:`nbmn.engine.where.Lookout`."""

    def waits(self) -> tuple[str, str, float, Wait] | None: ...
    def threads(self) -> tuple[Busy, ...]: ...
    def begun(self) -> dict[str, int]: ...
    def line(self) -> str: ...
    def blocked(self) -> str: ...
    def stack(self) -> tuple[Frame, ...]: ...
    def takes_interrupts(self) -> bool: ...
    def interrupt_threads(self, main: bool = False) -> None: ...


class Tracer(Protocol):
    """Tells what the main thread did; as :class:`nbmn.engine.tracing.Tracer`."""

    def timeline(self, steps: int) -> Timeline: ...


class Console(Protocol):
    """Where the person types; as :class:`nbmn.engine.console.Console`."""

    closed: bool
    where: str

    @property
    def seconds(self) -> float | None: ...
    def answer(self, question: int, text: str) -> None: ...
