"""The ``%mn`` magics. Thin: read a line, call the library, show the result."""

from __future__ import annotations

from IPython.core.interactiveshell import InteractiveShell

from nbmn.magics.cells import CellMagics
from nbmn.magics.cluster import ClusterMagics
from nbmn.magics.context import Context
from nbmn.magics.debug import DebugMagics
from nbmn.magics.diff import DiffMagics
from nbmn.magics.trace import TraceMagics
from nbmn.magics.train import TrainMagics
from nbmn.magics.transfer import TransferMagics
from nbmn.magics.watch import WatchMagics

MAGICS = (
    CellMagics,
    ClusterMagics,
    DebugMagics,
    DiffMagics,
    TraceMagics,
    TrainMagics,
    TransferMagics,
    WatchMagics,
)


def register(shell: InteractiveShell) -> None:
    """Register all magics. Running ranks survive a reload of the extension."""
    known = shell.magics_manager.registry.get(ClusterMagics.__name__)
    context = known.context if known is not None else Context(shell)
    for magics in MAGICS:
        shell.register_magics(magics(shell, context))
