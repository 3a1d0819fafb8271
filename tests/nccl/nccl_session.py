"""Runs checks on ranks with the stand-in for NCCL, compiled here, and CuPy's own driver of NCCL."""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

HERE = Path(__file__).parent
RANKS = HERE / "ranks"
TESTS = HERE.parent
DRIVER = TESTS / "mpi" / "ranks" / "driver.py"
DEADLINE = 100.0


def reason_to_skip() -> str | None:
    if shutil.which("gcc") is None:
        return "no gcc installed"
    if mpiexec() is None:
        return "no mpiexec installed"
    return None


def mpiexec() -> Path | None:
    path = Path(sys.executable).with_name("mpiexec")
    return path if path.exists() else None


def drivers() -> list[str]:
    """Return the drivers of NCCL that are installed."""
    found = {"cupy": "cupy_backends", "nccl4py": "nccl.bindings"}
    return [name for name, package in found.items() if _has(package)]


def missing(module: str, driver: str) -> str | None:
    """Return what a module's checks need and is not installed, or None."""
    needed = {"cupy_backends": "CuPy", "ml_dtypes": "ml_dtypes"}
    if driver == "nccl4py":
        needed["nccl.bindings"] = "nccl4py"
    if module == "nccl_on_cupy" and not _nvrtc():
        return "nvidia-cuda-nvrtc"
    if module == "nccl_on_cupy" and shutil.which("g++") is None:
        return "g++"
    return next((name for package, name in needed.items() if not _has(package)), None)


def _nvrtc() -> bool:
    try:
        importlib.metadata.distribution("nvidia-cuda-nvrtc")
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _has(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ImportError:
        return False


@functools.cache
def stubs() -> Path:
    """Compile CUDA's libraries with nothing in them, as far as CuPy links them."""
    folder = Path(tempfile.mkdtemp(prefix="nbmn-cuda-"))
    program = TESTS / "cupy" / "stub_libraries.py"
    subprocess.run([sys.executable, program, folder], check=True, timeout=120)
    return folder


@functools.cache
def library() -> Path:
    """Compile the stand-in; return its file."""
    folder = Path(tempfile.mkdtemp(prefix="nbmn-nccl-"))
    path = folder / "libnccl.so.2"
    subprocess.run(
        [
            *("gcc", "-O2", "-shared", "-fPIC", "-pthread", "-fvisibility=hidden", "-Werror"),
            *("-Wall", "-Wextra", "-Wno-unused-parameter", "-Wno-missing-field-initializers"),
            *("-Wl,-soname,libnccl.so.2", "-o", path, HERE / "libnccl_standin.c"),
        ],
        check=True,
        timeout=60,
    )
    return path


def environment(driver: str = "cupy", *, cuda: bool = False) -> dict[str, str]:
    """Return the environment in which that is NCCL, and with ``cuda`` CUDA seems to be there."""
    path = library()
    folders = [path.parent, *([stubs()] if cuda else []), os.environ.get("LD_LIBRARY_PATH")]
    return {
        **os.environ,
        "LD_LIBRARY_PATH": ":".join(str(folder) for folder in folders if folder),
        "NBMN_NCCL_STANDIN": str(path.parent),
        "NBMN_NCCL_STANDIN_LIBRARY": str(path),
        "NBMN_NCCL_DRIVER": driver,
        "XDG_CACHE_HOME": str(path.parent),
        "PYTHONPATH": ":".join(map(str, (RANKS, DRIVER.parent, TESTS / "cupy", TESTS / "unit"))),
        "OMP_NUM_THREADS": "1",
    }


def checks(module: str) -> list[str]:
    """Return the names of a module's checks, without importing it."""
    return re.findall(r"^def (check_\w+)\(", (RANKS / f"{module}.py").read_text(), re.MULTILINE)


@functools.cache
def session(module: str, ranks: int, driver: str) -> tuple[tuple[dict[str, str], ...], str]:
    """Run all checks of a module; return per rank what came of each, and what was printed."""
    with tempfile.TemporaryDirectory() as folder:
        command = [mpiexec(), "-n", str(ranks), sys.executable, DRIVER, module, folder]
        env = environment(driver, cuda=module == "nccl_on_cupy")
        output = run([str(part) for part in command], env)
        reports = []
        for rank in range(ranks):
            path = Path(folder) / f"{rank}.jsonl"
            lines = path.read_text().splitlines() if path.exists() else []
            reports.append(dict(json.loads(line) for line in lines))
    return tuple(reports), output


def run(command: list[str], env: dict[str, str], deadline: float = DEADLINE) -> str:
    """Run a command in its own process group, which alone is ended at the deadline."""
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=env,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=deadline)
        return f"{output}\n(exit status {process.returncode})"
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        output, _ = process.communicate()
        return f"{output}\n(killed after {deadline:g} s)"


def verify(module: str, check: str, ranks: int, driver: str) -> None:
    """Fail, or skip, as the ranks did in one check."""
    reports, output = session(module, ranks, driver)
    results = [report.get(check, "not reached") for report in reports]
    if all(result.startswith("skipped") for result in results):
        pytest.skip(results[0])
    failures = [f"rank {r}: {result}" for r, result in enumerate(results) if result != "ok"]
    if any("not reached" in failure for failure in failures):
        failures.append(output[-4000:])
    assert not failures, "\n".join(failures)
