"""The names that a package's sources use of CuPy, found without importing them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ARRAY_MODULES = frozenset({"xp", "self.xp", "_xp", "device.xp", "self.device.xp"})
"""Expressions that stand for NumPy or CuPy."""

CUDA = frozenset({"cuda", "chainer.cuda", "backend.cuda", "chainer.backends.cuda", "backends.cuda"})
"""Expressions that stand for Chainer's module ``chainer.backends.cuda``."""

FROM_CUDA = {"cupy": "cupy", "cupyx": "cupyx", "cuda": "cupy.cuda", "libcudnn": "cupy.cuda.cudnn"}
FROM_CUDA |= {"cudnn": "cupy.cudnn"}
FROM_CUDA |= {name: f"cupy.cuda.{name}" for name in ("Device", "Event", "Stream")}
"""What that module's names stand for."""


@dataclass(frozen=True, order=True, slots=True)
class Use:
    """One place that uses a name of CuPy's."""

    name: str
    """Such as ``cupy.random.standard_normal``."""
    file: str
    line: int
    either: bool
    """Whether NumPy may be meant as well."""


def uses(package: Path) -> list[Use]:
    """List all uses of CuPy in a package."""
    found: set[Use] = set()
    for path in sorted(package.rglob("*.py")):
        file = path.relative_to(package.parent).as_posix()
        tree = ast.parse(path.read_text("utf-8"))
        aliases = dict(_aliases(tree, file))
        for node, dotted in _outermost(tree):
            name = _resolved(dotted, aliases)
            if name is not None:
                found.add(Use(name, file, node.lineno, dotted != name and _is_array_module(dotted)))
        found |= {Use(name, file, line, False) for name, line in _imported(tree)}
    return sorted(found)


def _is_array_module(dotted: str) -> bool:
    return any(dotted.startswith(f"{prefix}.") for prefix in ARRAY_MODULES)


def _outermost(tree: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """Attribute chains that are no part of longer ones, as dotted names."""
    inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and id(node) not in inner:
            chain = node
            while isinstance(chain, ast.Attribute) and not _dotted(chain):
                chain = chain.value
            dotted = _dotted(node)
            if dotted:
                yield node, dotted


def _dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        before = _dotted(node.value)
        return f"{before}.{node.attr}" if before else ""
    return ""


def _aliases(tree: ast.AST, file: str) -> Iterator[tuple[str, str]]:
    """What a file calls CuPy and its modules by itself."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] in ("cupy", "cupyx"):
                    yield (
                        (alias.asname, alias.name)
                        if alias.asname
                        else (alias.name.split(".")[0],) * 2
                    )
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in (
            "cupy",
            "cupyx",
        ):
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"
        elif isinstance(node, ast.Assign) and len(node.targets) == 1:
            target, value = _dotted(node.targets[0]), _dotted(node.value)
            known = _resolved(value, {})
            if target and known and "." not in target and not file.endswith("backends/cuda.py"):
                yield target, known


def _resolved(dotted: str, aliases: dict[str, str]) -> str | None:
    head, _, rest = dotted.partition(".")
    if head in aliases:
        return f"{aliases[head]}.{rest}" if rest else aliases[head]
    for prefix in CUDA:
        if dotted.startswith(f"{prefix}."):
            name, _, more = dotted.removeprefix(f"{prefix}.").partition(".")
            if name in FROM_CUDA:
                return f"{FROM_CUDA[name]}.{more}" if more else FROM_CUDA[name]
    for prefix in ARRAY_MODULES:
        if dotted.startswith(f"{prefix}."):
            return "cupy." + dotted.removeprefix(f"{prefix}.")
    return None


def _imported(tree: ast.AST) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            if name.split(".")[0] in ("cupy", "cupyx"):
                yield name, node.lineno
