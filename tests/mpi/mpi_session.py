"""Runs the checks of one module under ``mpiexec`` and reads what each rank made of them."""

from __future__ import annotations

import functools
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

RANKS = Path(__file__).parent / "ranks"
DEADLINE = 100.0


@dataclass(frozen=True)
class Session:
    """What came of one run of ``mpiexec``."""

    reports: tuple[dict[str, str], ...]
    """Per rank: check name to "ok", "skipped: …" or a traceback."""
    output: str


def mpiexec() -> Path | None:
    """Return the launcher of this Python's environment."""
    path = Path(sys.executable).with_name("mpiexec")
    return path if path.exists() else None


@functools.cache
def launch_options() -> tuple[str, ...]:
    """Return what this launcher needs to start many ranks on few cores, also as root."""
    version = subprocess.run(
        [mpiexec(), "--version"], capture_output=True, text=True, timeout=30, check=False
    )
    if re.search(r"Open MPI|OpenRTE|PRRTE", version.stdout + version.stderr):
        return ("--allow-run-as-root", "--oversubscribe")
    return ()


def checks() -> list[tuple[str, str]]:
    """Return (module, check) of all checks, without importing them."""
    return [
        (path.stem, name)
        for path in sorted(RANKS.glob("check_*.py"))
        for name in re.findall(r"^def (check_\w+)\(", path.read_text(), re.MULTILINE)
    ]


@functools.cache
def session(module: str, ranks: int, deadline: float = DEADLINE) -> Session:
    """Run all checks of a module on ``ranks`` ranks; once, whoever asks."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            str(mpiexec()),
            *launch_options(),
            *("-n", str(ranks), sys.executable, str(RANKS / "driver.py"), module, folder),
        ]
        output = run(command, deadline)
        reports = []
        for rank in range(ranks):
            path = Path(folder) / f"{rank}.jsonl"
            lines = path.read_text().splitlines() if path.exists() else []
            reports.append(dict(json.loads(line) for line in lines))
    return Session(tuple(reports), output)


def run(command: list[str], deadline: float = DEADLINE) -> str:
    """Run a command in its own process group, which alone is killed at the deadline."""
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=deadline)
        ending = f"(exit status {process.returncode})"
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            output, _ = process.communicate(timeout=5)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
        ending = f"(killed after {deadline:g} s)"
    return f"{output}\n{ending}"


def verify(module: str, check: str, ranks: int, deadline: float = DEADLINE) -> None:
    """Fail, or skip, as the ranks did in one check."""
    ran = session(module, ranks, deadline)
    results = [report.get(check, "not reached") for report in ran.reports]
    if all(result.startswith("skipped") for result in results):
        pytest.skip(results[0])
    failures = [f"rank {r}: {result}" for r, result in enumerate(results) if result != "ok"]
    if any("not reached" in failure for failure in failures):
        failures.append(ran.output[-4000:])
    assert not failures, "\n".join(failures)
