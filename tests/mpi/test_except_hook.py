"""A script one of whose ranks has an uncaught exception, under a real ``mpiexec``."""

import os
import re

import mpi_session
import pytest

pytestmark = pytest.mark.skipif(mpi_session.mpiexec() is None, reason="no mpiexec installed")

SCRIPT = """
import sys
import nbmn as chainermn
{add}
comm = chainermn.create_communicator()
comm.timeout = {timeout}

def train():
    if comm.rank == 1:
        raise LookupError("bad sample on rank 1")
    comm.barrier()

try:
    train()
finally:
    print(f"rank {{comm.rank}} leaves", flush=True)
"""


def run(monkeypatch, add, timeout=None, **variables):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    script = SCRIPT.format(add=add, timeout=timeout)
    command = [str(mpi_session.mpiexec()), *mpi_session.launch_options(), "-n", "2"]
    python = str(mpi_session.mpiexec().with_name("python"))
    return mpi_session.run([*command, python, "-c", script], 60)


def status(output):
    return int(re.search(r"\(exit status (-?\d+)\)", output)[1])


def check_ended(output):
    """By rank 1's exception, which is printed; rank 0 waited and was ended with it."""
    assert "Traceback (most recent call last)" in output
    assert "in train" in output
    assert "LookupError: bad sample on rank 1" in output
    assert "rank 1 of 2 ends the job" in output
    assert "rank 0 leaves" not in output
    assert status(output) != 0


def test_hook_ends_all_ranks(monkeypatch):
    check_ended(run(monkeypatch, "chainermn.global_except_hook.add_hook()"))


@pytest.mark.parametrize(
    "variable", ["CHAINERMN_FORCE_ABORT_ON_EXCEPTION", "CHAINERMN_FORCE_ABORT_ON_EXCEPTIONS"]
)
def test_variable_adds_the_hook(monkeypatch, variable):
    add = "chainermn.global_except_hook._add_hook_if_enabled()"
    check_ended(run(monkeypatch, add, **{variable: "1"}))


def test_without_the_hook_the_others_go_on(monkeypatch):
    """Until their deadline, here; an empty variable is none."""
    add = "chainermn.global_except_hook._add_hook_if_enabled()"
    empty = {"CHAINERMN_FORCE_ABORT_ON_EXCEPTION": ""}
    output = run(monkeypatch, add, timeout=1, **empty)
    assert "LookupError: bad sample on rank 1" in output
    assert "CollectiveTimeoutError" in output
    assert "rank 0 leaves" in output
    assert "ends the job" not in output
    assert status(output) != 0
    assert "CHAINERMN_FORCE_ABORT_ON_EXCEPTIONS" not in os.environ
