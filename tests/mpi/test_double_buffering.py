"""How scripts end that leave gradients behind in double buffering."""

import sys

import mpi_session
import pytest

pytestmark = pytest.mark.skipif(mpi_session.mpiexec() is None, reason="no mpiexec installed")

SCRIPT = """
import numpy as np, chainer, nbmn

comm = nbmn.create_communicator()
model = chainer.links.Linear(300, 200)
optimizer = nbmn.create_multi_node_optimizer(
    chainer.optimizers.SGD(), comm, double_buffering=True).setup(model)
x = np.ones((2, 300), "f")
for step in range(5 if {alike} else 5 + comm.rank):
    optimizer.update(lambda: chainer.functions.sum(model(x)))
    if step == 4:
        print("rank", comm.rank, "at its end", flush=True)
        if not {alike} and comm.rank == 0:
            break
if not {alike} and comm.rank > 0:
    # Waits for means that rank 0 takes no part in.
    assert not optimizer._background._worker.idle()
"""


def run(alike):
    launch = [str(mpi_session.mpiexec()), *mpi_session.launch_options(), "-n", "2"]
    script = SCRIPT.format(alike=alike)
    return mpi_session.run([*launch, sys.executable, "-c", script], 60)


@pytest.mark.parametrize("alike", [True, False])
def test_process_ends_with_gradients_under_way(alike):
    output = run(alike)
    assert output.count("at its end") == 2, output[-4000:]
    assert "killed" not in output
    told = "rank 1 ends before the mean of its last gradients has come" in output
    assert told == (not alike), output[-4000:]
    assert "rank 0 ends before" not in output
    assert "Traceback" not in output, output[-4000:]
