"""What every check can say; loads neither CuPy nor Chainer."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any

STANDIN = "NBMN_GPU_CHECKS_STANDIN" in os.environ
"""There is no GPU: these scripts are tested, and CuPy's kernels give no numbers."""
if STANDIN:
    import gpu_standin  # noqa: F401 - before CuPy

Report = Callable[..., None]
"""Called with the name of what was measured, and figures by name, with their units in it."""


class Skip(Exception):
    """The check does not apply here."""


def rounded(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Return figures as JSON can have them, floats with four digits."""
    return {name: _plain(value) for name, value in figures.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return rounded(value)
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "item") and getattr(value, "size", 0) == 1:
        value = value.item()  # NumPy's
    if isinstance(value, float):
        return float(f"{value:.4g}")
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def measured(what: str, value: float, most: float) -> None:
    """Fail if a figure that a GPU gives is too large."""
    if not STANDIN:
        assert value <= most, f"{what}: {value:.4g}, more than {most:.4g}"


def each(*parts: Callable[[], object]) -> None:
    """Do all parts of a check, whatever comes of one; time on a GPU is dear.

    For what is done in one process: ranks would be out of step.

    Raises
    ------
    AssertionError
        At the end: it tells what failed, of which tracebacks are printed.
    """
    failed = []
    for part in parts:
        try:
            part()
        except Exception as error:  # noqa: BLE001 - told
            traceback.print_exc()
            name = getattr(part, "func", part).__name__
            failed.append(f"{name}: {type(error).__name__}: {error}")
    assert not failed, "; ".join(failed)


def leave_mpi() -> None:
    """Let MPI know that this process ends in order, where it takes part in it."""
    mpi4py = sys.modules.get("mpi4py.MPI")
    if mpi4py is not None and mpi4py.Is_initialized() and not mpi4py.Is_finalized():
        mpi4py.Finalize()
