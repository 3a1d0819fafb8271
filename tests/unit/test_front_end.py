"""Which front end sent a cell, told from its request."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nbmn.front_end import NOTEBOOK, TERMINAL, VS_CODE, _of, front_end


@pytest.fixture
def process(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[int]:
    """Process id of a Python that runs a script of that name."""
    script = tmp_path / request.param
    script.write_text("print(flush=True); input()")
    command = [sys.executable, str(script)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as running:
        running.stdout.readline()
        yield running.pid
        running.communicate(b"\n")


def _sent_from_python(process: int) -> dict[str, dict[str, str]]:
    return {"header": {"msg_id": f"1f0c-77_{process}_12"}, "metadata": {}}


@pytest.mark.parametrize("process", ["jupyter-console", "jupyter-qtconsole"], indirect=True)
def test_consoles(process: int) -> None:
    assert _of(_sent_from_python(process)) == TERMINAL


@pytest.mark.parametrize("process", ["jupyter-nbconvert"], indirect=True)
def test_other_clients_in_python(process: int) -> None:
    assert _of(_sent_from_python(process)) == NOTEBOOK


def test_a_client_on_another_host() -> None:
    assert _of(_sent_from_python(2**22 + 1)) == NOTEBOOK  # above what Linux gives to processes


def test_pages() -> None:
    lab = {"header": {"msg_id": "7b0e5e4c-9a55"}, "metadata": {"cellId": "a1b2", "trusted": True}}
    assert _of(lab) == NOTEBOOK
    assert _of({"header": {}, "metadata": {}}) == NOTEBOOK
    cell = "vscode-notebook-cell:/home/me/train.ipynb#W0sZmlsZQ"
    assert _of({"header": {"msg_id": "7b0e5e4c"}, "metadata": {"cellId": cell}}) == VS_CODE


def test_without_a_kernel() -> None:
    assert front_end() == TERMINAL
