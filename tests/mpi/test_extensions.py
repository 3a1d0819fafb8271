"""A training script that is killed while it saves, and started again: real processes."""

import functools
import json
import os

import mpi_session
import numpy as np
import pytest

pytestmark = pytest.mark.skipif(mpi_session.mpiexec() is None, reason="no mpiexec installed")

SCRIPT = """
import json, os, sys
import chainer, chainer.functions as F, chainer.links as L, numpy as np
import nbmn
from chainer.training import extensions
from nbmn.extensions import storage

kind, out, die_at = sys.argv[1], sys.argv[2], int(sys.argv[3])
comm = nbmn.create_communicator("shared_memory", timeout=30)
np.random.seed(os.getpid() if die_at < 0 else comm.rank)

class Net(chainer.Chain):
    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.a, self.b = L.Linear(None, 8), L.Linear(None, 2)
    def forward(self, x):
        return self.b(F.dropout(F.relu(self.a(x)), 0.3))

data = np.random.RandomState(comm.rank).randn(30, 5).astype(np.float32)
labels = (data.sum(axis=1) > 0).astype(np.int32)
model = L.Classifier(Net())
optimizer = nbmn.create_multi_node_optimizer(chainer.optimizers.Adam(), comm).setup(model)
iterator = chainer.iterators.SerialIterator(chainer.datasets.TupleDataset(data, labels), 4)
updater = chainer.training.updaters.StandardUpdater(iterator, optimizer)
trainer = chainer.training.Trainer(updater, (12, "iteration"), out=out)
if kind == "checkpointer":
    saver = nbmn.extensions.create_multi_node_checkpointer("run", comm)
    trainer.extend(saver, trigger=(2, "iteration"))
    saver.maybe_load(trainer, optimizer)
elif kind == "snapshot":
    snapshot = extensions.snapshot(autoload=True, n_retains=2)
    saver = nbmn.extensions.multi_node_snapshot(comm, snapshot, [0])
    trainer.extend(saver, trigger=(2, "iteration"))

begun = []
trainer.extend(lambda t: begun.append(t.updater.iteration), name="begun",
               trigger=(1, "iteration"))

# The process is gone between its file and the manifest: after the first name is on the disk.
real_sync = storage.sync
def sync(path):
    real_sync(path)
    if path.is_dir() and updater.iteration == die_at and comm.rank == 1:
        os.kill(os.getpid(), 9)
storage.sync = sync

trainer.run()
if comm.rank == 0:
    W = [p.array.astype(float).ravel().tolist() for _, p in sorted(model.namedparams())]
    print("RESULT " + json.dumps([begun[0], sum(W, [])]), flush=True)
"""


def run(kind, out, die_at, ranks=2):
    command = [str(mpi_session.mpiexec()), *mpi_session.launch_options(), "-n", str(ranks)]
    python = str(mpi_session.mpiexec().with_name("python"))
    output = mpi_session.run([*command, python, "-c", SCRIPT, kind, str(out), str(die_at)], 90)
    results = [line for line in output.splitlines() if line.startswith("RESULT ")]
    return output, json.loads(results[0][7:]) if results else None


@functools.cache
def whole():
    """The weights after a run that neither saves nor is broken off."""
    output, result = run("nothing", os.devnull, die_at=100)
    assert result is not None, output
    return result[1]


@pytest.mark.parametrize("kind", ["checkpointer", "snapshot"])
def test_killed_while_saving(kind, tmp_path):
    output, killed = run(kind, tmp_path, die_at=8)
    assert killed is None, output
    left = {path.name for path in tmp_path.iterdir()}
    name = "run.1.8" if kind == "checkpointer" else "snapshot_iter_8.1"
    assert name in left
    assert f"{name}.manifest" not in left
    rank_0_was_done = f"{name.replace('.1', '.0')}.manifest" in left
    output, resumed = run(kind, tmp_path, die_at=-1)
    assert resumed is not None, output
    assert resumed[0] == 7, output  # after iteration 6, the latest that both ranks completed
    if rank_0_was_done:  # before it was ended with rank 1
        assert "iteration 8 cannot be used" in output
        assert "on rank 1" in output
    np.testing.assert_array_equal(resumed[1], whole())


def test_another_number_of_processes(tmp_path):
    """Two ranks began; three go on, as the sets of [0] have the same lowest ranks."""
    run("snapshot", tmp_path, die_at=8)
    output, resumed = run("snapshot", tmp_path, die_at=-1, ranks=3)
    assert resumed is not None, output
    assert resumed[0] == 7
    assert "begin anew" in output
    assert np.isfinite(resumed[1]).all()
