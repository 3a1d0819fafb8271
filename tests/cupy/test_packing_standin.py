"""Packing of CuPy's arrays, where there is CuPy and no device."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("cupy_backends") is None
    or importlib.util.find_spec("ml_dtypes") is None
    or shutil.which("g++") is None,
    reason="needs CuPy, ml_dtypes and g++",
)


def test_packing_without_a_device(tmp_path):
    stubs = tmp_path / "stubs"
    stubs.mkdir()
    subprocess.run([sys.executable, HERE / "stub_libraries.py", stubs], check=True, timeout=120)
    ran = subprocess.run(
        [sys.executable, HERE / "packing_calls.py"],
        env={**os.environ, "LD_LIBRARY_PATH": str(stubs), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.count("passed") == 13
