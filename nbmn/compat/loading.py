"""Executes Chainer's modules with their repairs around them."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from nbmn.compat import deferred, table
from nbmn.compat.repair import Repair


def repaired_spec(
    finder: object, name: str, path: Sequence[str] | None, target: ModuleType | None
) -> ModuleSpec | None:
    """Find a Chainer module as if `finder` were not there, and attach its repairs."""
    spec = _found_by_others(finder, name, path, target)
    if spec is None or spec.loader is None:
        return spec
    if name == "chainer":
        spec.loader = _Loader(spec.loader, _execute_package)
    else:
        repairs = tuple(r for r in table.of_module(name) if r.needed())
        if repairs:
            spec.loader = _Loader(spec.loader, functools.partial(_execute_repaired, repairs))
    return spec


def _found_by_others(
    finder: object, name: str, path: Sequence[str] | None, target: ModuleType | None
) -> ModuleSpec | None:
    for other in list(sys.meta_path):
        if other is finder or getattr(other, "gives_way_to_nbmn", False):
            continue
        find_spec = getattr(other, "find_spec", None)
        spec = find_spec(name, path, target) if find_spec is not None else None
        if spec is not None:
            return spec
    return None


class _Loader:
    """Executes a module in another way than its loader does, which it otherwise is."""

    def __init__(self, loader: Any, execute: Callable[[Any, ModuleType], None]) -> None:
        self._loader = loader
        self._execute = execute

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # Whoever asks the finished module for its source gets the original loader.
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._execute(self._loader, module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


def _execute_package(loader: Any, module: ModuleType) -> None:
    # A first import that failed leaves its submodules behind, some of them half
    # initialised: the next one must not find them.
    _drop_submodules()
    module._repaired_by_nbmn = True
    try:
        with deferred.imports():
            loader.exec_module(module)
    except BaseException:
        _drop_submodules()
        raise


def _drop_submodules() -> None:
    for name in [name for name in sys.modules if name.startswith("chainer.")]:
        del sys.modules[name]


def _execute_repaired(repairs: tuple[Repair, ...], loader: Any, module: ModuleType) -> None:
    execute = loader.exec_module
    with contextlib.ExitStack() as stack:
        for repair in repairs:
            if repair.during is not None:
                stack.enter_context(repair.during())
            execute = repair.instead or execute
        execute(module)
    for repair in repairs:
        if repair.after is not None:
            try:
                repair.after(module)
            except Exception as error:
                error.add_note(
                    f"nbmn could not repair Chainer's {repair.file} ({repair.what}). "
                    "The repairs are for Chainer 7.8.1: is that the version installed?"
                )
                raise
