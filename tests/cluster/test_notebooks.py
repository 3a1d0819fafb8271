"""Every tutorial runs from top to bottom, without a browser."""

from __future__ import annotations

import re
from pathlib import Path

import nbclient
import nbformat
import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))


def _run(path: Path, folder: Path) -> str:
    """Execute a notebook; returns all that it printed."""
    notebook = nbformat.read(path, 4)
    resources = {"metadata": {"path": str(folder)}}
    nbclient.NotebookClient(notebook, timeout=180, resources=resources).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    shown = [output.get("data", {}).get("text/plain", "") for output in outputs]
    return "\n".join([output.get("text", "") for output in outputs] + shown)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs_and_is_committed_without_outputs(path: Path, tmp_path: Path) -> None:
    source = nbformat.read(path, 4)
    code = [cell for cell in source.cells if cell.cell_type == "code"]
    assert not any(cell.outputs or cell.execution_count for cell in code)
    text = _run(path, tmp_path)
    if path.stem == "01_quickstart":
        assert float(re.search(r"test accuracy: ([\d.]+)%", text).group(1)) > 95
        assert float(re.search(r"2 ranks against 1: (\S+)", text).group(1)) < 1e-4
        assert "done, iteration" in text
