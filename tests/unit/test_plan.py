"""Plans for a start, checked before anything starts."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from nbmn.cluster import Plan, StartError, launch
from nbmn.cluster.starting import scarcity
from nbmn.parent import VARIABLE, Parent


@pytest.mark.parametrize("ranks", [0, -1])
def test_too_few_ranks(ranks: int) -> None:
    with pytest.raises(StartError, match=f"{ranks} ranks cannot be started"):
        launch.check(Plan(ranks))


def test_more_ranks_than_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "count_gpus", lambda: 2)
    launch.check(Plan(2))
    launch.check(Plan(4, share_gpus=True))
    with pytest.raises(StartError, match=r"4 ranks but 2 GPUs here.*%mn_start 4 --share-gpus"):
        launch.check(Plan(4))
    assert launch.default_ranks() == 2
    monkeypatch.setattr(launch, "count_gpus", lambda: 0)
    launch.check(Plan(1000))
    assert launch.default_ranks() == len(os.sched_getaffinity(0))


def test_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in launch.THREAD_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MKL_NUM_THREADS", "7")
    one = launch.environment(Plan(2))
    assert one["OMP_NUM_THREADS"] == "1"
    assert "MKL_NUM_THREADS" not in one  # the user's own choice stays
    four = launch.environment(Plan(2, threads=4))
    assert {four[name] for name in launch.THREAD_VARIABLES} == {"4"}
    assert Parent.decode(one[VARIABLE]).pid == os.getpid()


def _fake_mpiexec(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = folder / "mpiexec"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setattr(launch.sys, "executable", str(folder / "python"))
    return path


def test_mpiexec_beside_python_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _fake_mpiexec(tmp_path, "echo 'HYDRA build details'", monkeypatch)
    assert launch.find_mpiexec().path == str(path)


@pytest.mark.parametrize("said", ["HYDRA build details", "Intel(R) MPI Library for Linux* OS"])
def test_hydra_is_kept_to_this_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    path = _fake_mpiexec(tmp_path, f"echo '{said}'", monkeypatch)
    here = ("-launcher", "fork", "-hosts", "localhost")
    assert launch.find_mpiexec() == launch.Mpiexec(str(path), here)


def test_ranks_start_here_within_a_job_of_a_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        mpiexec = launch.find_mpiexec()
    except StartError:
        pytest.skip("there is no mpiexec")
    if "-launcher" not in mpiexec.arguments:
        pytest.skip("needs MPICH")
    job = {"SLURM_JOB_ID": "7", "SLURM_NODELIST": "there[1-2]", "SLURM_TASKS_PER_NODE": "1(x2)"}
    for name, value in job.items():
        monkeypatch.setenv(name, value)
    # In the order in which ipyparallel puts them.
    command = [mpiexec.path, "-n", "2", *mpiexec.arguments, "echo", "started"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    assert ran.stdout == "started\nstarted\n"


def test_a_working_folder_that_was_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    monkeypatch.chdir(folder)
    launch.check(Plan(1))
    folder.rmdir()
    with pytest.raises(StartError, match=r"folder was deleted.*%cd"):
        launch.check(Plan(1))


def test_open_mpi_needs_leave_to_share_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fake_mpiexec(tmp_path, "echo 'mpiexec (Open MPI) 5.0.11'", monkeypatch)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    usual = ("--oversubscribe", "--mca", "ras", "^slurm,tm,lsf,gridengine,pbs")
    assert launch.find_mpiexec().arguments == (*usual, "--allow-run-as-root")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert launch.find_mpiexec().arguments == usual


def test_too_little_shared_memory_is_named() -> None:
    assert scarcity(64_000_000, 8) == ""
    said = scarcity(900_000, 2)
    assert "/dev/shm has 0.9 MB left" in said
    assert "4 MB there for 2 ranks" in said


def test_a_broken_mpiexec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _fake_mpiexec(tmp_path, "echo 'no such library' >&2; exit 127", monkeypatch)
    with pytest.raises(StartError, match="no such library"):
        launch.find_mpiexec()


def test_a_server_beside_the_notebook_does_not_learn_of_the_ranks() -> None:
    """ipyparallel's extension of Jupyter's server would stop them, and print their logs."""
    cluster = launch.make_cluster(Plan(ranks=2), launch.Mpiexec("mpiexec", ()))
    assert cluster.cluster_file == ""
