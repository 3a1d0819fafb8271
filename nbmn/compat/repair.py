"""What a repair of one Chainer file is."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from types import FunctionType, ModuleType


@dataclass(frozen=True, slots=True)
class Repair:
    """One thing made right in one file of Chainer 7.8.1."""

    module: str
    """The module it repairs, such as ``chainer.reporter``."""
    what: str
    """What is done."""
    why: str
    """What goes wrong without it."""
    after: Callable[[ModuleType], None] | None = field(default=None, repr=False)
    """Changes the module once it has executed."""
    during: Callable[[], AbstractContextManager[None]] | None = field(default=None, repr=False)
    """Surrounds its execution."""
    instead: Callable[[ModuleType], None] | None = field(default=None, repr=False)
    """Fills the module in place of its own code."""
    needed: Callable[[], bool] = field(default=lambda: True, repr=False)
    """Whether the environment calls for the repair."""

    @property
    def file(self) -> str:
        """The repaired file, as a path inside Chainer's folder."""
        return self.module.removeprefix("chainer.").replace(".", "/") + ".py"


class StandIn(ModuleType):
    """A module as one function of Chainer sees it, with some of its names replaced.

    Everything else is looked up in the original when asked for, so the original
    stays as it is for everybody else.
    """

    def __init__(self, original: ModuleType, **names: object) -> None:
        super().__init__(original.__name__, f"{original.__name__} as Chainer sees it")
        self.__dict__.update(names, _original=original)

    def __getattr__(self, name: str) -> object:
        return getattr(self._original, name)


def seeing(function: FunctionType, **names: object) -> FunctionType:
    """Return `function` with some of its global names standing for something else.

    Only this function sees them, so that its module's other code can still ask
    whether an array module ``is numpy``.
    """
    altered = FunctionType(
        function.__code__,
        {**function.__globals__, **names},
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    altered.__kwdefaults__ = function.__kwdefaults__
    return functools.update_wrapper(altered, function)
