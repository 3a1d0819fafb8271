"""Whether MPI takes memory of GPUs is tried in processes of their own, and not assumed."""

from __future__ import annotations

import json
import os
import sys
import time
from types import SimpleNamespace

import pytest

from nbmn.communicators import cuda_aware
from nbmn.communicators.cuda_aware import Finding, outside_of_jobs, prove, remembered

SAYS = "from nbmn.communicators.cuda_aware import say_proved; say_proved()"


def python(text: str) -> list[str]:
    return [sys.executable, "-c", text]


def test_proved():
    assert prove(python(SAYS), os.environ) == Finding(None)


def test_nothing_said_proves_nothing():
    assert "status 0: well" in prove(python("print('well')"), os.environ).refusal


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("import ctypes; ctypes.string_at(16)", "died of signal 11"),
        (f"{SAYS}; import os; os.abort()", "died of signal 6"),
        (f"{SAYS}; raise SystemExit('3 != 4')", "ended with status 1: 3 != 4"),
    ],
)
def test_crashes_kill_the_child_only(text, told):
    found = prove(python(text), os.environ)
    assert told in found.refusal


def test_real_mpi_dies_of_an_address_that_is_none(tmp_path):
    pytest.importorskip("mpi4py")
    text = """
from mpi4py import MPI
class Device:
    __cuda_array_interface__ = {
        "shape": (1000,), "typestr": "<f4", "data": (4096, False), "version": 3, "strides": None
    }
MPI.COMM_SELF.Iallreduce(MPI.IN_PLACE, Device(), MPI.SUM).Wait()
MPI.COMM_SELF.Isend(Device(), 0, 0); MPI.COMM_SELF.Recv(bytearray(4000), 0, 0)
"""
    found = prove(python(text + SAYS), outside_of_jobs(os.environ))
    assert found.refusal is not None


def test_hanging_child_is_ended():
    begin = time.monotonic()
    found = prove(python("import time; time.sleep(60)"), os.environ, deadline=0.5)
    assert time.monotonic() - begin < 20
    assert found == Finding("MPI did not take memory of GPUs within 0.5 s")


def test_no_such_program():
    found = prove(["/no/such/mpiexec"], os.environ)
    assert "could not be tried" in found.refusal


def test_what_is_proved_is_kept(tmp_path):
    marks, path = tmp_path / "marks", tmp_path / "kept" / "here.json"
    command = python(f"open({str(marks)!r}, 'a').write('x'); {SAYS}")
    assert remembered(path, command, os.environ) == Finding(None)
    assert remembered(path, command, os.environ) == Finding(None)
    assert marks.read_text() == "x"
    assert os.listdir(path.parent) == ["here.json"]
    path.write_text("not json")
    assert remembered(path, command, os.environ) == Finding(None)
    assert marks.read_text() == "xx"


def test_what_is_not_proved_is_tried_again_and_told_of(tmp_path):
    marks, path = tmp_path / "marks", tmp_path / "kept" / "here.json"
    words = f"open({str(marks)!r}, 'a').write('x'); print('no such device\\nfarewell')"
    for times in (1, 2):
        refusal = remembered(path, python(words), os.environ).refusal
        assert marks.read_text() == "x" * times
        log = path.with_suffix(".log")
        assert refusal.endswith(f"status 0: farewell (all that was said: {log})")
        assert "no such device\nfarewell\n" in log.read_text()
        assert sys.executable in log.read_text()
    assert not path.exists()
    path.write_text(json.dumps({"proved": False}))
    assert remembered(path, python(SAYS), os.environ) == Finding(None)


def test_what_a_proof_holds_for(monkeypatch):
    pytest.importorskip("mpi4py")
    host, gpus = ["host boot-1"], ["NVIDIA H200"]
    monkeypatch.setattr(cuda_aware, "host_identity", lambda: host[0])
    monkeypatch.setattr(cuda_aware, "_gpus", lambda: list(gpus))
    runtime = SimpleNamespace(driverGetVersion=lambda: 13000)
    cupy = SimpleNamespace(__version__="14.2.0", cuda=SimpleNamespace(runtime=runtime))
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    command, settings = ("mpiexec", "-n", "2"), {"UCX_TLS": "cuda", "HOME": "/home/a"}
    key = cuda_aware._key
    first = key(command, settings)
    assert key(command, {**settings, "HOME": "/home/b", "SHLVL": "2"}) == first
    keys = [first, key(("other", "-n", "2"), settings)]
    for name in ("UCX_TLS", "FI_PROVIDER", "OMPI_MCA_pml", "MPIR_CVAR_ENABLE_GPU", "I_MPI_OFFLOAD"):
        keys.append(key(command, {**settings, name: "changed"}))
    host[0] = "host boot-2"
    keys.append(key(command, settings))
    gpus.append("NVIDIA H200")
    keys.append(key(command, settings))
    assert len(set(keys)) == len(keys)


def test_two_ranks_start_here_within_a_job_of_slurm(tmp_path):
    pytest.importorskip("mpi4py")
    launcher = cuda_aware._launcher()
    if launcher is None:
        pytest.skip("there is no mpiexec")
    text = f"from mpi4py import MPI; assert MPI.COMM_WORLD.Get_size() == 2; {SAYS}"
    job = {
        "SLURM_JOB_ID": "7",
        "SLURM_NODELIST": "there[1-2]",
        "SLURM_JOB_NODELIST": "there[1-2]",
        "SLURM_TASKS_PER_NODE": "1(x2)",
        "SLURM_PROCID": "0",
        "PBS_JOBID": "7",
        "PBS_NODEFILE": str(tmp_path / "nodes"),
    }
    (tmp_path / "nodes").write_text("there1\nthere2\n")
    environment = outside_of_jobs({**os.environ, **job})
    assert prove(cuda_aware.trial(launcher, "-c", text), environment) == Finding(None)


def test_a_proof_is_no_part_of_the_job():
    job = {"PMI_RANK": "1", "PMI_FD": "7", "OMPI_COMM_WORLD_RANK": "0", "PMIX_NAMESPACE": "x"}
    mine = {"PATH": "/bin", "OMPI_MCA_btl": "self", "MPIR_CVAR_ENABLE_GPU": "1"}
    assert outside_of_jobs({**job, **mine}) == mine
