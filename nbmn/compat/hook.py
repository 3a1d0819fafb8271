"""Puts Chainer's repairs in the path of its import.

Runs at every ``import nbmn`` and, through ``startup.py``, before the first import
of Chainer in any Python of the environment, so it imports nothing that costs time.
"""

from __future__ import annotations

import sys
import warnings


class ChainerFinder:
    """Meta-path finder that answers for ``chainer`` and its submodules only."""

    gives_way_to_nbmn = True  # to the one of an nbmn that is loaded anew

    def find_spec(self, name, path=None, target=None):
        if name != "chainer" and not name.startswith("chainer."):
            return None
        from nbmn.compat import loading

        return loading.repaired_spec(self, name, path, target)


def install() -> ChainerFinder:
    """Install the finder, once; return the one that is installed (local).

    Warns
    -----
    RuntimeWarning
        Chainer is loaded already, without the repairs.
    """
    chainer = sys.modules.get("chainer")
    if chainer is not None and not hasattr(chainer, "_repaired_by_nbmn"):
        warnings.warn(
            "Chainer was imported before nbmn could repair it: some of its results are wrong "
            "on this NumPy. Restart Python (or the kernel), and import nbmn first.",
            RuntimeWarning,
            stacklevel=3,
        )
    for position, finder in enumerate(sys.meta_path):
        if isinstance(finder, ChainerFinder):
            return finder
        if getattr(finder, "gives_way_to_nbmn", False):
            # Replaced where it stands: the import system may be iterating over this list.
            sys.meta_path[position] = installed = ChainerFinder()
            return installed
    installed = ChainerFinder()
    sys.meta_path.insert(0, installed)
    return installed
