"""Finds out whether MPI can be given memory of a GPU: by trying, in processes of its own.

An MPI that cannot reads such addresses as its own memory, and dies of it. What libraries say of
themselves is not enough: parts of them may not support what others do.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nbmn.communicators.runtime import mpi

DEADLINE = 60.0
"""Seconds for a proof; starting ranks with CuPy takes some."""

_PROVED = "nbmn: proved"

# By these a process knows that it belongs to a job of MPI. A proof is another job.
_OF_JOBS = (
    *("PMI_", "PMIX_", "HYDI_", "HYDRA_", "MPI_LOCAL", "PALS_", "PRTE_"),
    *("OMPI_COMM_WORLD", "OMPI_UNIVERSE", "OMPI_APP", "OMPI_FIRST", "OMPI_FILE", "OMPI_NUM"),
    *("OMPI_MCA_orte", "OMPI_MCA_ess", "OMPI_MCA_initial"),
)


def refusal() -> str | None:
    """Return why MPI is not to be given memory of GPUs, or None; local.

    Tried once for each environment; what came of it is kept in the user's cache.
    """
    launcher = _launcher()
    if launcher is None:
        return "there is no mpiexec to try with whether MPI takes memory of GPUs"
    program = "nbmn.communicators.cuda_aware_proof"
    command = [launcher, *_options(launcher), "-n", "2", sys.executable, "-m", program]
    environment = outside_of_jobs(os.environ)
    return remembered(_cache() / f"{_key(environment)}.json", command, environment).refusal


@dataclass(frozen=True, slots=True)
class Finding:
    """What came of trying."""

    refusal: str | None
    """Why MPI is not to be given memory of GPUs, or None."""
    lasting: bool = True
    """It would be the same another time."""


def remembered(path: Path, command: Sequence[str], environment: Mapping[str, str]) -> Finding:
    """Return what :func:`prove` once found for this, kept in a file; local."""
    try:
        return Finding(json.loads(path.read_text())["refusal"])
    except (OSError, ValueError, KeyError, TypeError):
        found = prove(command, environment)
    if found.lasting:
        # Where it cannot be kept it is tried again the next time.
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
                json.dump({"refusal": found.refusal, "command": list(command)}, file)
            os.replace(file.name, path)  # others may be reading
    return found


def prove(
    command: Sequence[str], environment: Mapping[str, str], deadline: float = DEADLINE
) -> Finding:
    """Run what tries it; local.

    Parameters
    ----------
    command
        Must end with status 0 and print that it is proved.
    """
    try:
        process = subprocess.Popen(
            command,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        return Finding(f"whether MPI takes memory of GPUs could not be tried ({error})", False)
    try:
        output, _ = process.communicate(timeout=deadline)
    except BaseException as error:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if isinstance(error, subprocess.TimeoutExpired):
            return Finding(f"MPI did not take memory of GPUs within {deadline:g} s", False)
        raise
    if process.returncode == 0 and _PROVED in output:
        return Finding(None)
    status = process.returncode
    how = f"died of signal {-status}" if status < 0 else f"ended with status {status}"
    lines = [line for line in output.splitlines() if line.strip()]
    said = lines[-1].strip()[:120] if lines else "no output"
    return Finding(f"MPI given memory of GPUs {how}: {said}")


def say_proved() -> None:
    """Print what :func:`prove` looks for."""
    print(_PROVED, flush=True)


def outside_of_jobs(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without what makes a process part of a job of MPI."""
    return {name: value for name, value in environment.items() if not name.startswith(_OF_JOBS)}


def _key(environment: Mapping[str, str]) -> str:
    import cupy

    # What MPI and the network below it are told, and what they are.
    told = ("MPI", "OMPI", "UCX", "FI_", "CUDA", "NCCL", "LD_LIBRARY_PATH", "PSM", "MV2")
    settings = sorted(item for item in environment.items() if item[0].startswith(told))
    driver = cupy.cuda.runtime.driverGetVersion()
    what = (mpi().Get_library_version(), cupy.__version__, driver, sys.executable, settings)
    return hashlib.blake2b(repr(what).encode(), digest_size=12).hexdigest()


def _cache() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "nbmn" / "cuda-aware-mpi"


def _launcher() -> str | None:
    beside = Path(sys.executable).with_name("mpiexec")
    return str(beside) if os.access(beside, os.X_OK) else shutil.which("mpiexec")


@functools.cache
def _options(launcher: str) -> tuple[str, ...]:
    open_mpi = mpi().Get_library_version().startswith("Open MPI")
    return ("--oversubscribe", *(("--allow-run-as-root",) if os.geteuid() == 0 else ())) * open_mpi
