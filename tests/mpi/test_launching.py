"""How scripts are started, and how the tests themselves end what hangs."""

import subprocess
import sys
import time

import mpi_session
import pytest

SCRIPT = """
import sys
import numpy as np
import nbmn
from nbmn.communicators import current_activity

assert "mpi4py.MPI" not in sys.modules
assert current_activity() is None
assert "mpi4py.MPI" not in sys.modules
comm = nbmn.create_communicator()
total = comm.allreduce(np.ones(3))
print(f"rank {comm.rank} of {comm.size}: {total.sum():g}")
"""
needs_mpiexec = pytest.mark.skipif(mpi_session.mpiexec() is None, reason="no mpiexec installed")


def test_without_mpiexec_the_world_has_one_rank():
    output = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=False
    )
    assert output.stdout == "rank 0 of 1: 3\n", output.stderr


@needs_mpiexec
def test_plain_script():
    command = [str(mpi_session.mpiexec()), *mpi_session.launch_options(), "-n", "2"]
    output = mpi_session.run([*command, sys.executable, "-c", SCRIPT], 60)
    assert "rank 0 of 2: 6" in output
    assert "rank 1 of 2: 6" in output
    assert "exit status 0" in output


@needs_mpiexec
def test_leaving_with_an_unfinished_collective():
    script = """
import numpy as np
import nbmn
comm = nbmn.create_communicator()
comm.timeout = 0.1
if comm.rank == 0:
    try:
        comm.allreduce(np.ones(100_000))
    except TimeoutError:
        print("timed out")
"""
    command = [str(mpi_session.mpiexec()), *mpi_session.launch_options(), "-n", "2"]
    output = mpi_session.run([*command, sys.executable, "-c", script], 60)
    assert "timed out" in output
    assert "killed" not in output


@needs_mpiexec
def test_a_session_that_hangs_is_ended():
    script = "import nbmn; comm = nbmn.create_communicator(); comm.rank == 0 and comm.barrier()"
    script += "; import time; print('here', flush=True); time.sleep(1000)"
    command = [str(mpi_session.mpiexec()), *mpi_session.launch_options(), "-n", "2"]
    begin = time.monotonic()
    output = mpi_session.run([*command, sys.executable, "-c", script], 5)
    assert "killed after 5 s" in output
    assert time.monotonic() - begin < 15
