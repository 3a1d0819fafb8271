"""The examples as scripts under ``mpiexec``, in a small form; a ChainerMN script as it was."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import mpi_session
import numpy as np
import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPT = Path(__file__).with_name("chainermn_script.py")

pytestmark = pytest.mark.skipif(mpi_session.mpiexec() is None, reason="no mpiexec installed")


def start(ranks, *command, deadline=90):
    """Run a Python command on ranks; return its output."""
    launcher = [str(mpi_session.mpiexec()), *mpi_session.launch_options(), "-n", str(ranks)]
    return mpi_session.run([*launcher, sys.executable, *map(str, command)], deadline)


def log_of(out):
    """Read what LogReport wrote: one dict per epoch."""
    return json.loads((out / "log").read_text())


def train(name, ranks, out, *options):
    """Run an example and return its log."""
    output = start(ranks, "-m", "mpi4py", EXAMPLES / f"{name}.py", "--out", out, *options)
    assert "exit status 0" in output, output
    return log_of(out)


def column(log, key):
    return np.array([row[key] for row in log])


def test_data_parallel_digits(tmp_path):
    log = train("data_parallel_digits", 2, tmp_path, "--epochs", 3)
    assert [row["iteration"] for row in log] == [24, 47, 71]  # 750 examples each, 32 at a time
    assert (np.diff(column(log, "validation/main/loss")) < 0).all()
    assert log[-1]["validation/main/accuracy"] > 0.8


def test_imagenet_resnet50_goes_on_from_its_snapshot(tmp_path):
    small = ("--size", 32, "--width", 4, "--examples", 32, "--classes", 2)
    first = train("imagenet_resnet50", 2, tmp_path, *small, "--epochs", 1)
    second = train("imagenet_resnet50", 2, tmp_path, *small, "--epochs", 2)
    assert [row["iteration"] for row in second] == [2, 4]  # 16 examples in batches of 8
    assert second[0] == first[0]  # that epoch was not trained again
    assert 0 < second[1]["main/loss"] < 3


def test_dcgan(tmp_path):
    log = train("dcgan", 2, tmp_path, "--epochs", 1, "--width", 8)
    assert np.isfinite(column(log, "generator/loss")).all()
    # The discriminator gets better than one that tosses a coin, whose loss is 2 ln 2.
    assert log[-1]["discriminator/loss"] < 2 * np.log(2)
    assert (tmp_path / "samples.png").read_bytes().startswith(b"\x89PNG")


def test_seq2seq(tmp_path):
    small = ("--pairs", 600, "--longest", 2, "--units", 32)
    log = train("seq2seq", 2, tmp_path, *small, "--epochs", 5)
    assert (np.diff(column(log, "main/loss")) < 0).all()
    assert log[-1]["validation/exact"] > 0.3  # 200 rows of 110; at random it is 0.01


@pytest.mark.parametrize("name", ["model_parallel_mlp", "channel_parallel_convolution"])
def test_a_model_over_two_ranks_learns_what_it_does_on_one(name, tmp_path):
    small = ("--epochs", 2, "--batch", 100)
    alone, both = (train(name, n, tmp_path / str(n), *small) for n in (1, 2))
    for key in ("main/loss", "validation/main/loss", "validation/main/accuracy"):
        np.testing.assert_allclose(column(both, key), column(alone, key), rtol=1e-3)
    assert both[-1]["validation/main/accuracy"] > 0.5


def test_dual_parallel_mlp(tmp_path):
    log = train("dual_parallel_mlp", 4, tmp_path, "--epochs", 3)
    assert [row["iteration"] for row in log] == [12, 24, 36]  # each pair 750 examples, 64 at a time
    assert (np.diff(column(log, "validation/main/loss")) < 0).all()
    assert log[-1]["validation/main/accuracy"] > 0.7


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_every_example_is_tried(path):
    text = Path(__file__).read_text()
    assert path.stem == "handwritten" or f'"{path.stem}"' in text


def test_a_chainermn_script_runs_unchanged(tmp_path):
    assert "nbmn" not in SCRIPT.read_text().replace("never heard of nbmn", "")
    output = start(2, "-m", "nbmn.compat.chainermn", SCRIPT, "-o", tmp_path, "--epoch", 3)
    assert "exit status 0" in output, output
    assert "rank 0 of 2: 1" in output
    assert "rank 1 of 2: 1" in output
    log = log_of(tmp_path)
    assert [row["iteration"] for row in log] == [15, 30, 45]
    assert log[-1]["validation/main/accuracy"] > 0.9


def test_a_rank_that_fails_ends_the_job(tmp_path):
    begin = time.monotonic()
    output = start(2, "-m", "nbmn.compat.chainermn", SCRIPT, "-o", tmp_path, "--fail-on", 1)
    assert "RuntimeError: this rank fails" in output
    assert "rank 1 of 2 ends the job" in output
    assert "exit status 0" not in output
    assert "killed" not in output
    assert time.monotonic() - begin < 60
    told = output[output.rindex("Traceback (most recent call last)") :]
    assert 'chainermn_script.py", line' in told
    assert "running.py" not in told
    assert "runpy" not in told


def test_an_exit_status_other_than_0_ends_the_job(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, chainermn\n"
        "comm = chainermn.create_communicator('naive')\n"
        "comm.rank == 1 and sys.exit(3)\n"
        "comm.barrier()\n"
    )
    output = start(2, "-m", "nbmn.compat.chainermn", script, deadline=40)
    assert "killed" not in output
    assert "exit status 0" not in output
