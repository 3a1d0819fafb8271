"""nbmn: interactive cluster training from a notebook.

In a notebook, ``%load_ext nbmn`` and ``%mn_start 2`` start two MPI ranks; in a
script under ``mpiexec`` the same names do what ChainerMN's do, so that
``import nbmn as chainermn`` is all that a ChainerMN script needs.

``import nbmn`` is cheap: a public name loads its module when it is first used,
and Chainer is repaired at the moment it is imported (see :mod:`nbmn.compat`).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from nbmn import global_except_hook
from nbmn.compat import hook as _hook

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

__version__ = "0.1.0"

_PUBLIC = {
    "CommunicatorBase": "nbmn.communicators",
    "DataSizeError": "nbmn.datasets",
    "MultiNodeChainList": "nbmn.links",
    "create_communicator": "nbmn.communicators",
    "create_multi_node_checkpointer": "nbmn.extensions",
    "create_multi_node_evaluator": "nbmn.extensions",
    "create_multi_node_optimizer": "nbmn.optimizers",
    "phase": "nbmn.phases",
    "report": "nbmn.engine",
    "scatter_dataset": "nbmn.datasets",
    "scatter_index": "nbmn.datasets",
}
_MODULES = (
    "communicators",
    "datasets",
    "debug",
    "extensions",
    "functions",
    "global_except_hook",
    "iterators",
    "links",
    "nccl",
    "optimizers",
    "testing",
)

__all__ = ["__version__", "load_ipython_extension", *_PUBLIC, *_MODULES]

_hook.install()
global_except_hook._add_hook_if_enabled()


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(importlib.import_module(_PUBLIC[name]), name)
    if name in _MODULES:
        return importlib.import_module(f"nbmn.{name}")
    raise AttributeError(f"module 'nbmn' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Register the ``%mn_*`` magics; called by ``%load_ext nbmn``."""
    from nbmn.magics import register

    register(shell)
