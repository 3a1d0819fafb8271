"""Prints the names that Chainer and ChainerMN use of CuPy and the installed one has not."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
from pathlib import Path

import device_standin  # noqa: F401 - CuPy finds no device otherwise
import names_used
import numpy as np


def exists(name: str) -> bool:
    parts = name.split(".")
    found = importlib.import_module(parts[0])
    for position, part in enumerate(parts[1:], 2):
        if not hasattr(found, part):
            try:
                importlib.import_module(".".join(parts[:position]))
            except ImportError:
                return False
        found = getattr(found, part)
    return True


site = Path(importlib.util.find_spec("chainer").origin).parents[1]
used = [*names_used.uses(site / "chainer"), *names_used.uses(site / "chainermn")]
missing: dict[str, list[str]] = {}
for use in used:
    numpys = use.name.removeprefix("cupy.")
    if not exists(use.name):
        missing.setdefault(use.name, []).append(f"{use.file}:{use.line}")
    elif use.either and "." not in numpys and not hasattr(np, numpys):
        missing.setdefault(f"numpy.{numpys}", []).append(f"{use.file}:{use.line}")
print(json.dumps({"used": len({use.name for use in used}), "missing": missing}))
sys.stdout.flush()
os._exit(0)
