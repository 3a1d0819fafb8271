"""What ranks do, why they do not go on, and in what they differ; faults to practise with."""

from __future__ import annotations

import importlib
from types import ModuleType


def __getattr__(name: str) -> ModuleType:
    if name != "faults":
        raise AttributeError(f"module 'nbmn.debug' has no attribute {name!r}")
    return importlib.import_module("nbmn.debug.faults")
