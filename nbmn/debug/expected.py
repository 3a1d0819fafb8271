"""What may well differ over ranks that train together. Pure."""

from __future__ import annotations

from collections.abc import Mapping

STATISTICS = (
    "running statistics of batch normalization differ in data-parallel training: expected, unless "
    "links.MultiNodeBatchNormalization is used"
)
PARTS = "a SubDataset differs: expected, where it is a rank's part of a scattered dataset"

_NORMALIZATIONS = ("BatchNormalization", "BatchRenormalization", "DecorrelatedBatchNormalization")
_STATISTICS = ("avg_mean", "avg_var", "avg_projection")


class Expectations:
    """Knows the parts of a value.

    Parameters
    ----------
    kinds
        Types of all entries, by path.
    """

    def __init__(self, kinds: Mapping[str, str]) -> None:
        self._kinds = kinds
        self._datasets = [path for path, kind in kinds.items() if kind == "SubDataset"]

    def reason(self, path: str) -> str:
        """Why an entry may well differ; empty if it should not."""
        parent, _, name = path.rpartition("/")
        if name in _STATISTICS and self._kinds.get(parent) in _NORMALIZATIONS:
            return STATISTICS
        parts = any(path == outer or inside(path, outer) for outer in self._datasets)
        return PARTS if parts else ""


def inside(path: str, outer: str) -> bool:
    """Whether an entry is a part of another."""
    rest = path[len(outer) :]
    return path.startswith(outer) and rest[:1] in ("/", ".", "[", "{")
