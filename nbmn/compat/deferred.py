"""Packages that Chainer imports and seldom uses, loaded when first used.

They are half of the time that ``import chainer`` takes.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from types import ModuleType

# What Chainer's files import at their top and use inside functions only.
DEFERRED = frozenset(
    {"PIL.Image", "filelock", "scipy.io", "scipy.linalg", "scipy.sparse", "scipy.special"}
)


class Deferred(ModuleType):
    """Stands for a module in the files that imported it, and loads it when used.

    It leaves ``sys.modules`` when Chainer's import ends, so that everybody else
    imports the real module, in the ordinary way and under the ordinary locks.
    """

    def __getattr__(self, name: str) -> object:
        if "_ready" not in vars(self):
            # The import system, still creating this module, asks what it has already.
            raise AttributeError(name)
        return getattr(self._real(), name)

    def __setattr__(self, name: str, value: object) -> None:
        if name.startswith("__"):
            super().__setattr__(name, value)
        else:
            setattr(self._real(), name, value)

    def _real(self) -> ModuleType:
        _withdraw(self)
        return importlib.import_module(self.__name__)


def _withdraw(module: Deferred) -> None:
    name = module.__name__
    if sys.modules.get(name) is module:
        del sys.modules[name]
    parent, _, child = name.rpartition(".")
    if parent in sys.modules and vars(sys.modules[parent]).get(child) is module:
        delattr(sys.modules[parent], child)


class _Finder:
    def __init__(self) -> None:
        self.handed_out: dict[str, Deferred] = {}

    def find_spec(self, name, path=None, target=None):
        if name not in DEFERRED or name in self.handed_out:
            return None
        return ModuleSpec(name, self)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = Deferred(spec.name)
        self.handed_out[spec.name] = module
        return module

    def exec_module(self, module: ModuleType) -> None:
        vars(module)["_ready"] = True


@contextlib.contextmanager
def imports() -> Iterator[None]:
    """Defer what is listed in `DEFERRED` while Chainer is imported."""
    finder = _Finder()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for module in finder.handed_out.values():
            _withdraw(module)
