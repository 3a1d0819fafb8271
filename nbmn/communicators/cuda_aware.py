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
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from nbmn.communicators.runtime import mpi
from nbmn.communicators.topology import host_identity

DEADLINE = 60.0
"""Seconds for a proof; starting ranks with CuPy takes some."""

_PROVED = "nbmn: proved"

# By these a process knows that it belongs to a job of MPI, and a launcher to one of a scheduler,
# by which it would start ranks elsewhere. A proof is another job, here.
_OF_JOBS = (
    *("SLURM_", "PBS_", "LSB_", "I_MPI_HYDRA_"),
    *("PMI_", "PMIX_", "HYDI_", "HYDRA_", "MPI_LOCAL", "PALS_", "PRTE_"),
    *("OMPI_COMM_WORLD", "OMPI_UNIVERSE", "OMPI_APP", "OMPI_FIRST", "OMPI_FILE", "OMPI_NUM"),
    *("OMPI_MCA_orte", "OMPI_MCA_ess", "OMPI_MCA_initial"),
)

# What MPI and the network below it are told.
_SETTINGS = (
    *("MPI", "OMPI", "OPAL", "I_MPI", "MV2", "HCOLL"),
    *("UCX", "FI_", "PSM", "IBV_", "GDR", "CUDA", "NCCL", "LD_LIBRARY_PATH", "LD_PRELOAD"),
)

_PROOF = 2
"""What is proved; higher whenever the proof changes, since what it found is remembered."""

_HYDRA = ("-launcher", "fork", "-hosts", "localhost")
_HERE = {
    "Open MPI": ("--oversubscribe", "--host", "localhost:2"),
    **dict.fromkeys(("MPICH", "Intel(R) MPI", "MVAPICH"), _HYDRA),
}
"""What starts two ranks on this host, whatever hosts a job has; by libraries' names."""


def refusal() -> str | None:
    """Return why MPI is not to be given memory of GPUs, or None; local.

    Tried once by a process. That it is proved is kept in the user's cache, for this boot of this
    host, its GPUs, MPI and settings; why it is not is kept there to be read only.
    """
    launcher = _launcher()
    if launcher is None:
        return "there is no mpiexec to try with whether MPI takes memory of GPUs"
    command = trial(launcher, "-m", "nbmn.communicators.cuda_aware_proof")
    return _tried(_cache() / f"{_key(command, outside_of_jobs(os.environ))}.json", command)


@functools.cache
def _tried(path: Path, command: tuple[str, ...]) -> str | None:
    return remembered(path, command, outside_of_jobs(os.environ)).refusal


@dataclass(frozen=True, slots=True)
class Finding:
    """What came of trying."""

    refusal: str | None
    """Why MPI is not to be given memory of GPUs, or None."""
    output: str = field(default="", compare=False)
    """Of the processes that tried."""


def remembered(path: Path, command: Sequence[str], environment: Mapping[str, str]) -> Finding:
    """Return what :func:`prove` finds, or once found if it proved it; local.

    Parameters
    ----------
    path
        Is there where it was proved. Else what the processes said is beside it, in ``.log``.
    """
    try:
        if json.loads(path.read_text())["proved"] is True:
            return Finding(None)
    except (OSError, ValueError, KeyError, TypeError):
        pass  # it is not there, or nothing that was written here
    found = prove(command, environment)
    log = path.with_suffix(".log")
    # Where nothing can be kept it is tried again the next time.
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        if found.refusal is None:
            _write(path, json.dumps({"proved": True, "command": list(command)}))
        else:
            _write(log, f"{shlex.join(command)}\n{found.refusal}\n\n{found.output}")
            return replace(found, refusal=f"{found.refusal} (all that was said: {log})")
    return found


def _write(path: Path, text: str) -> None:
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
        file.write(text)
    os.replace(file.name, path)  # others may be reading


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
        return Finding(f"whether MPI takes memory of GPUs could not be tried ({error})")
    try:
        output, _ = process.communicate(timeout=deadline)
    except BaseException as error:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if isinstance(error, subprocess.TimeoutExpired):
            return Finding(f"MPI did not take memory of GPUs within {deadline:g} s")
        raise
    if process.returncode == 0 and _PROVED in output:
        return Finding(None)
    status = process.returncode
    how = f"died of signal {-status}" if status < 0 else f"ended with status {status}"
    lines = [line for line in output.splitlines() if line.strip()]
    said = lines[-1].strip()[:120] if lines else "no output"
    return Finding(f"MPI given memory of GPUs {how}: {said}", output)


def say_proved() -> None:
    """Print what :func:`prove` looks for."""
    print(_PROVED, flush=True)


def outside_of_jobs(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without what makes a process part of a job of MPI."""
    return {name: value for name, value in environment.items() if not name.startswith(_OF_JOBS)}


def _key(command: Sequence[str], environment: Mapping[str, str]) -> str:
    import cupy

    settings = sorted(item for item in environment.items() if item[0].startswith(_SETTINGS))
    what = (
        _PROOF,
        *(host_identity(), _gpus(), command, settings),
        *(mpi().Get_library_version(), cupy.__version__, cupy.cuda.runtime.driverGetVersion()),
    )
    return hashlib.blake2b(repr(what).encode(), digest_size=12).hexdigest()


def _gpus() -> list[str]:
    from cupy.cuda import runtime

    try:
        count = runtime.getDeviceCount()
        return [runtime.getDeviceProperties(n)["name"].decode() for n in range(count)]
    except runtime.CUDARuntimeError as error:
        return [str(error)]


def _cache() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "nbmn" / "cuda-aware-mpi"


def _launcher() -> str | None:
    beside = Path(sys.executable).with_name("mpiexec")
    return str(beside) if os.access(beside, os.X_OK) else shutil.which("mpiexec")


def trial(launcher: str, *program: str) -> tuple[str, ...]:
    """Return the command that runs Python with these arguments on two ranks of this host."""
    library = mpi().Get_library_version()
    here = next((told for name, told in _HERE.items() if library.startswith(name)), ())
    if library.startswith("Open MPI") and os.geteuid() == 0:
        here = ("--allow-run-as-root", *here)
    return (launcher, *here, "-n", "2", sys.executable, *program)
