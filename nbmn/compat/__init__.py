"""The one door to Chainer: makes Chainer 7.8.1 right on current NumPy.

``import nbmn`` installs an import hook; whenever Chainer is imported, each of its
files that needs it is repaired as it executes. :func:`repairs` lists what is done.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nbmn.compat.repair import Repair

__all__ = ["repairs"]


def repairs() -> tuple[Repair, ...]:
    """List the repairs this environment needs (local).

    Returns
    -------
    tuple of Repair
        One row per repaired place, with ``file`` (inside Chainer's folder),
        ``what`` is done and ``why``.
    """
    from nbmn.compat import table

    return tuple(repair for repair in table.REPAIRS if repair.needed())
