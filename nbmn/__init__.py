"""nbmn: interactive cluster training from a notebook.

In a notebook, ``%load_ext nbmn`` and ``%mn_start 2`` start two MPI ranks; in a
script under ``mpiexec`` the same names do what ChainerMN's do.

``import nbmn`` is cheap: a public name loads its module when it is first used,
and Chainer is repaired at the moment it is imported (see :mod:`nbmn.compat`).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from nbmn.compat import hook as _hook

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

__version__ = "0.1.0"

_PUBLIC = {
    "create_communicator": "nbmn.communicators",
    "create_multi_node_evaluator": "nbmn.extensions",
    "create_multi_node_optimizer": "nbmn.optimizers",
    "report": "nbmn.engine",
    "scatter_dataset": "nbmn.datasets",
}

__all__ = ["__version__", "load_ipython_extension", *_PUBLIC]

_hook.install()


def __getattr__(name: str) -> Any:
    module = _PUBLIC.get(name)
    if module is None:
        raise AttributeError(f"module 'nbmn' has no attribute {name!r}")
    return getattr(importlib.import_module(module), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Register the ``%mn_*`` magics; called by ``%load_ext nbmn``."""
    from nbmn.magics import register

    register(shell)
