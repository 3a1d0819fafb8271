"""The CUDA kernels that Chainer's sources declare, found without importing them."""

from __future__ import annotations

import ast
from pathlib import Path

MAKERS = {"elementwise": 3, "reduce": 6, "raw": 1}
"""Makers of kernels in ``chainer.backends.cuda``, and which argument of theirs is the name."""


def declared(package: Path) -> dict[str, str]:
    """Map the places that declare kernels to their names: ``chainer/utils/conv.py:103``."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            maker = getattr(getattr(node, "func", None), "attr", None)
            if maker not in MAKERS or not ast.unparse(node.func.value).endswith("cuda"):
                continue
            name = node.args[MAKERS[maker]] if len(node.args) > MAKERS[maker] else node
            place = f"{path.relative_to(package.parent).as_posix()}:{node.lineno}"
            found[place] = getattr(name, "value", "") or ast.unparse(name)
    return found
