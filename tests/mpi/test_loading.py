"""Datasets that are large, and worker processes next to MPI."""

import json
import os
import subprocess
import sys

import mpi_session
import pytest

pytestmark = pytest.mark.skipif(mpi_session.mpiexec() is None, reason="no mpiexec installed")


def on_two_ranks(script, *arguments, deadline=60):
    launch = [str(mpi_session.mpiexec()), *mpi_session.launch_options(), "-n", "2"]
    path = str(mpi_session.RANKS / script)
    return mpi_session.run([*launch, sys.executable, path, *arguments], deadline)


def told(output):
    # Two ranks may share a line.
    return [json.loads("{" + part.split("}")[0] + "}") for part in output.split("{")[1:]]


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_worker_processes_next_to_mpi(method):
    output = on_two_ranks("loads.py", method)
    assert sorted(rank["done"] for rank in told(output)) == [0, 1], output[-4000:]
    assert "exit status 0" in output


def test_forks_of_ranks_are_refused():
    output = on_two_ranks("loads.py", "fork")
    assert told(output) == [{"refused": [True, True]}] * 2, output[-4000:]
    assert "exit status 0" in output


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("import nbmn; nbmn.create_communicator()", "under if __name__"),
        ("from nbmn import global_except_hook as g; g.add_hook(); 1 / 0", "ZeroDivisionError"),
    ],
)
def test_a_worker_that_uses_mpi_has_an_error(code, error):
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "MPI4PY_RC_INITIALIZE": "0"},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 1
    assert error in done.stderr.splitlines()[-1]


@pytest.mark.skipif(os.environ.get("NBMN_TEST_LARGE") != "1", reason="set NBMN_TEST_LARGE=1")
def test_dataset_larger_than_2_gib():
    output = on_two_ranks("large.py", deadline=300)
    assert output.count("has its part") == 2, output[-4000:]
