"""A small training run that can be broken off and compared, for checks of what saves it."""

import random
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
from chainer.training import extensions

import nbmn

STEPS = 11
X = np.random.RandomState(0).randn(40, 5).astype(np.float32)
T = np.random.RandomState(1).randint(0, 3, 40).astype(np.int32)


class Net(chainer.Chain):
    """Lazy, with dropout, and with running statistics that differ from rank to rank."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.first = L.Linear(None, 6)
            self.norm = L.BatchNormalization(6)
            self.second = L.Linear(None, 3)

    def forward(self, x):
        h = F.dropout(F.relu(self.norm(self.first(x))), 0.4)
        return self.second(h)


class BrokenOffError(Exception):
    pass


def steady(comm):
    """A communicator that adds in the same order every time, which ``auto`` does not."""
    return nbmn.create_communicator("shared_memory", timeout=comm.timeout)


@contextmanager
def folder(comm):
    """A folder that all ranks share."""
    path = comm.bcast_obj(tempfile.mkdtemp() if comm.rank == 0 else None)
    try:
        yield Path(path)
        comm.barrier()
    finally:
        if comm.rank == 0:
            shutil.rmtree(path, ignore_errors=True)


def shard(comm, per_rank=None):
    """Shards of unequal lengths, or the same number of examples for each rank."""
    n = per_rank or 10 + comm.rank
    part = slice(10 * comm.rank, 10 * comm.rank + n)
    return chainer.datasets.TupleDataset(X[part], T[part])


def build(comm, out, optimizer, seed, data=None, order_sampler=None):
    """Make a trainer whose weights and random numbers depend on the seed."""
    np.random.seed(100 * seed + comm.rank)
    random.seed(100 * seed + comm.rank)
    model = L.Classifier(Net())
    optimizer = nbmn.create_multi_node_optimizer(optimizer, comm).setup(model)
    optimizer.add_hook(chainer.optimizer_hooks.WeightDecay(1e-3))
    shuffle = True if order_sampler is None else None
    iterator = chainer.iterators.SerialIterator(
        shard(comm) if data is None else data, 4, shuffle=shuffle, order_sampler=order_sampler
    )
    updater = chainer.training.updaters.StandardUpdater(iterator, optimizer)
    trainer = chainer.training.Trainer(updater, (STEPS, "iteration"), out=str(out))
    trainer.extend(
        extensions.LogReport(trigger=(3, "iteration"), log_name=None), name="log", priority=100
    )
    trainer.extend(lambda trainer: random.random(), name="draw", trigger=(1, "iteration"))
    return trainer


def break_off(trainer, iteration, error=BrokenOffError):
    """Run until an iteration ends with an error."""

    def fail(trainer):
        raise error

    trainer.extend(fail, name="fail", trigger=lambda t: t.updater.iteration == iteration)
    trainer.get_extension("fail").priority = -1000
    trainer._extensions["fail"].priority = -1000
    try:
        trainer.run(show_loop_exception_msg=False)
    except error:
        return
    raise AssertionError("was not broken off")


def outcome(trainer):
    """All there is to compare, in bits."""
    state = chainer.serializers.DictionarySerializer()
    trainer.updater.serialize(state)
    found = {name: (a.dtype, a.shape, a.tobytes()) for name, a in state.target.items()}
    found["numpy"] = np.random.get_state()[1].tobytes(), np.random.get_state()[2:]
    found["python"] = random.getstate()
    log = trainer.get_extension("log").log
    found["log"] = [{k: v for k, v in entry.items() if k != "elapsed_time"} for entry in log]
    assert len(log) == STEPS // 3
    return found


def assert_same(first, second):
    assert first.keys() == second.keys()
    different = [name for name, value in first.items() if second[name] != value]
    assert not different, different
