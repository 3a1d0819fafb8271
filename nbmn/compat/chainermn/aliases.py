"""The modules of ChainerMN, each standing for one of nbmn's."""

from __future__ import annotations

import importlib
import importlib.metadata
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_PACKAGE = "chainermn"

_HOLDERS = {
    "": (),
    ".communicators": ("communicator_base",),
    ".datasets": ("empty_dataset", "scatter"),
    ".extensions": (
        "allreduce_persistent",
        "checkpoint",
        "multi_node_early_stopping_trigger",
        "multi_node_evaluator",
        "observation_aggregator",
    ),
    ".functions": ("collective_communication", "point_to_point_communication", "pseudo_connect"),
    ".global_except_hook": (),
    ".iterators": ("multi_node_iterator", "synchronized_iterator"),
    ".links": (
        "batch_normalization",
        "create_mnbn_model",
        "multi_node_chain_list",
        "n_step_rnn",
    ),
    ".nccl": (),
    ".optimizers": (),
    ".testing": ("device",),
}
"""nbmn's modules, and the files of ChainerMN's whose public names they hold."""

MODULES = {
    name: f"nbmn{holder}"
    for holder, files in _HOLDERS.items()
    for name in (_PACKAGE + holder, *(f"{_PACKAGE}{holder}.{file}" for file in files))
}
"""ChainerMN's modules and where nbmn has what is public in them."""


class Alias(ModuleType):
    """A module of ChainerMN's name whose content is looked up in one of nbmn's."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in ("__all__", "__file__", "__version__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return getattr(_target(self), name)

    def __setattr__(self, name: str, value: Any) -> None:
        # `import chainermn.functions.pseudo_connect` ends with this, and in ChainerMN too the
        # name goes on meaning the function.
        if isinstance(value, Alias):
            meant = getattr(_target(self), name, value)
            if not isinstance(meant, ModuleType):
                return
        super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *dir(_target(self))})


def _target(alias: Alias) -> ModuleType:
    return importlib.import_module(MODULES[alias.__name__])


class Finder:
    """Meta-path finder that answers for ``chainermn`` and its submodules only."""

    stands_for_chainermn = True

    def find_spec(self, name, path=None, target=None):
        if name != _PACKAGE and not name.startswith(f"{_PACKAGE}."):
            return None
        if name not in MODULES:
            raise ModuleNotFoundError(
                f"No module named {name!r}: nbmn stands for ChainerMN here and has no such module",
                name=name,
            )
        return ModuleSpec(name, self, origin=MODULES[name], is_package=True)

    def create_module(self, spec: ModuleSpec) -> Alias:
        return Alias(spec.name)

    def exec_module(self, module: Alias) -> None:
        module.__doc__ = _target(module).__doc__
        if module.__name__ == _PACKAGE:
            # What the script was written for; nbmn's own is nbmn.__version__.
            module.__version__ = importlib.metadata.version("chainer")


def install() -> None:
    """Let ``chainermn`` mean nbmn from now on; local, may be repeated.

    Raises
    ------
    ImportError
        ChainerMN's own package is loaded.
    """
    loaded = sys.modules.get(_PACKAGE)
    ours = "stands_for_chainermn"  # by name: nbmn itself may have been loaded anew
    if loaded is not None and not hasattr(loaded.__loader__, ours):
        raise ImportError(
            f"ChainerMN's own package is loaded already, from {loaded.__file__}. Restart Python "
            "(or the kernel), and import nbmn.compat.chainermn before chainermn.",
            name=_PACKAGE,
        )
    if not any(hasattr(finder, ours) for finder in sys.meta_path):
        sys.meta_path.insert(0, Finder())
