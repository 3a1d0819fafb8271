"""Both kinds of parallelism: pairs of ranks share a model, and each pair has its own examples.

mpiexec -n 4 python -m mpi4py examples/dual_parallel_mlp.py

Ranks 0 and 1 are one pair, 2 and 3 the next. In a pair the model is cut in two, as in
model_parallel_mlp.py; ranks with the same part average its gradients.
"""

from __future__ import annotations

import argparse

import chainer
import chainer.links as L
from chainer.training import StandardUpdater, Trainer, extensions
from handwritten import digits
from model_parallel_mlp import make_model, parse

import nbmn as chainermn


def make_trainer(comm: chainermn.CommunicatorBase, options: argparse.Namespace) -> Trainer:
    """Build this rank's part of the training; collective."""
    if comm.size % 2:
        raise ValueError("an even number of ranks is needed, for they work in pairs")
    pair = comm.split(comm.rank // 2, comm.rank)
    same_part = comm.split(comm.rank % 2, comm.rank)
    device = chainer.get_device(f"@cupy:{comm.intra_rank}" if options.gpu else "@numpy")
    device.use()

    train, test = comm.bcast_obj(digits() if comm.rank == 0 else None)
    train = chainermn.scatter_dataset(train, same_part, shuffle=True, seed=0)
    test = chainermn.scatter_dataset(test, same_part)
    model = make_model(pair, options.hidden)
    if pair.rank == 0:
        model = L.Classifier(model)
    else:
        train, test = map(chainermn.datasets.create_empty_dataset, (train, test))
    train_batches = chainer.iterators.SerialIterator(train, options.batch)
    test_batches = chainer.iterators.SerialIterator(test, 100, repeat=False, shuffle=False)

    model.to_device(device)
    optimizer = chainermn.create_multi_node_optimizer(chainer.optimizers.Adam(), same_part)
    optimizer.setup(model)
    updater = StandardUpdater(train_batches, optimizer, device=device)
    trainer = Trainer(updater, (options.epochs, "epoch"), out=options.out)
    evaluator = extensions.Evaluator(test_batches, model, device=device)
    trainer.extend(chainermn.create_multi_node_evaluator(evaluator, same_part))
    if comm.rank == 0:
        columns = ["epoch", "main/loss", "validation/main/loss", "validation/main/accuracy"]
        trainer.extend(extensions.LogReport())
        trainer.extend(extensions.PrintReport(columns))
    return trainer


if __name__ == "__main__":
    options = parse()
    make_trainer(chainermn.create_communicator(options.communicator), options).run()
