"""Imports point one way: what each folder may import of the others."""

from __future__ import annotations

import ast
import graphlib
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SHARED = {"records", "messages", "frames", "front_end", "markup", "parent", "ranks"}
MAY_IMPORT = {
    "nbmn": {"compat", "global_except_hook"},
    # An unchanged script that fails ends the other ranks.
    "compat": {"global_except_hook"},
    **{name: set() for name in SHARED},
    "communicators": {"gpu"},
    "datasets": {"communicators"},
    "extensions": {"communicators"},
    "functions": {"communicators"},
    "iterators": {"communicators", "delegation"},
    "links": {"communicators", "functions"},
    "delegation": set(),
    "optimizers": {"communicators", "delegation", "phases"},
    "global_except_hook": {"communicators"},
    "gpu": set(),
    "nccl": set(),
    "phases": set(),
    "testing": set(),
    "engine": {"nbmn", "communicators", "compat", "debug", "gpu", "optimizers", "phases", *SHARED},
    # What is known of ranks, wherever it is asked: by the notebook, and of two ranks by both.
    "debug": {"communicators", "engine", *SHARED},
    "dashboard": {"compat", "front_end", "records"},
    # The notebook names functions of the rank's side, to have them called there.
    "cluster": {"nbmn", "debug", "engine", *SHARED},
    "magics": {"cluster", "dashboard", "debug", *SHARED},
}
WITHOUT_NOTEBOOK = [
    "communicators",
    "compat",
    "datasets",
    "delegation",
    "extensions",
    "functions",
    "gpu",
    "global_except_hook",
    "iterators",
    "links",
    "nccl",
    "optimizers",
    "phases",
    "testing",
]


def modules() -> dict[str, Path]:
    paths = {path.relative_to(ROOT): path for path in (ROOT / "nbmn").rglob("*.py")}
    for path in (ROOT / "magics").rglob("*.py"):
        paths[Path("nbmn", path.relative_to(ROOT))] = path
    return {
        ".".join(p.with_suffix("").parts).removesuffix(".__init__"): f for p, f in paths.items()
    }


MODULES = modules()


def folder(module: str) -> str:
    return module.split(".")[1] if "." in module else module


def imported(path: Path, everywhere: bool) -> Iterator[str]:
    """Names of what a file imports; at its top only, or inside functions too."""
    for node in nodes(ast.parse(path.read_text("utf-8")), everywhere):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            within = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name in MODULES else node.module for name in within)


def nodes(tree: ast.AST, everywhere: bool) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            continue
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)) and not everywhere:
            continue
        yield child
        yield from nodes(child, everywhere)


@pytest.mark.parametrize("name", sorted(MODULES))
def test_folders_import_only_what_they_may(name):
    everywhere = name != "nbmn"  # whose public names are loaded when first used
    others = {
        folder(target) for target in imported(MODULES[name], everywhere) if target in MODULES
    } - {folder(name)}
    assert others <= MAY_IMPORT[folder(name)]


def test_every_folder_is_installed():
    with (ROOT / "pyproject.toml").open("rb") as file:
        listed = set(tomllib.load(file)["tool"]["setuptools"]["packages"])
    assert {name.rpartition(".")[0] for name in MODULES if "." in name} <= listed


@pytest.mark.parametrize("name", sorted(m for m in MODULES if folder(m) in WITHOUT_NOTEBOOK))
def test_scripts_need_no_notebook(name):
    packages = {target.partition(".")[0] for target in imported(MODULES[name], True)}
    assert not packages & {"IPython", "ipykernel", "ipyparallel", "ipywidgets", "bokeh", "zmq"}


def test_no_cycle():
    graph = {
        name: {target for target in imported(path, False) if target in MODULES} - {name}
        for name, path in MODULES.items()
    }
    assert len(tuple(graphlib.TopologicalSorter(graph).static_order())) == len(MODULES)
