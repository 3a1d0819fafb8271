"""Whether MPI takes memory of GPUs is tried in processes of their own, and not assumed."""

from __future__ import annotations

import json
import os
import sys
import time

import pytest

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
    assert found.lasting


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
    assert found.lasting


def test_hanging_child_is_ended():
    begin = time.monotonic()
    found = prove(python("import time; time.sleep(60)"), os.environ, deadline=0.5)
    assert time.monotonic() - begin < 20
    assert found == Finding("MPI did not take memory of GPUs within 0.5 s", lasting=False)


def test_no_such_program():
    found = prove(["/no/such/mpiexec"], os.environ)
    assert "could not be tried" in found.refusal
    assert not found.lasting


def test_tried_once(tmp_path):
    marks, path = tmp_path / "marks", tmp_path / "kept" / "here.json"
    command = python(f"open({str(marks)!r}, 'a').write('x'); {SAYS}")
    assert remembered(path, command, os.environ) == Finding(None)
    assert remembered(path, command, os.environ) == Finding(None)
    assert marks.read_text() == "x"
    assert json.loads(path.read_text())["refusal"] is None
    assert os.listdir(path.parent) == ["here.json"]
    path.write_text("not json")
    assert remembered(path, command, os.environ) == Finding(None)
    assert marks.read_text() == "xx"


def test_what_will_not_last_is_tried_again(tmp_path):
    path = tmp_path / "here.json"
    assert not remembered(path, ["/no/such/mpiexec"], os.environ).lasting
    assert not path.exists()


def test_a_proof_is_no_part_of_the_job():
    job = {"PMI_RANK": "1", "PMI_FD": "7", "OMPI_COMM_WORLD_RANK": "0", "PMIX_NAMESPACE": "x"}
    mine = {"PATH": "/bin", "OMPI_MCA_btl": "self", "MPIR_CVAR_ENABLE_GPU": "1"}
    assert outside_of_jobs({**job, **mine}) == mine
