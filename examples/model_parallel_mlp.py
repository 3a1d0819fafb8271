"""A model cut in two: rank 0 has its first and last part, rank 1 the middle.

mpiexec -n 2 python -m mpi4py examples/model_parallel_mlp.py

With one rank all of it is there, and learns exactly the same.
"""

from __future__ import annotations

import argparse

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
from chainer.training import StandardUpdater, Trainer, extensions
from handwritten import digits

import nbmn as chainermn


def layer(n_in: int, n_out: int, seed: int, activation=F.relu) -> chainer.Sequential:
    """A layer that starts with the same weights on whatever rank it is."""
    weights = chainer.initializers.LeCunNormal(rng=np.random.RandomState(seed))
    return chainer.Sequential(L.Linear(n_in, n_out, initialW=weights), activation)


def make_model(comm: chainermn.CommunicatorBase, hidden: int) -> chainermn.MultiNodeChainList:
    """Put this rank's parts together."""
    middle = 1 % comm.size  # the rank with the middle part
    model = chainermn.MultiNodeChainList(comm)
    if comm.rank == 0:
        model.add_link(layer(64, hidden, 0), rank_in=None, rank_out=middle)
    if comm.rank == middle:
        model.add_link(layer(hidden, hidden, 1), rank_in=0, rank_out=0)
    if comm.rank == 0:
        model.add_link(layer(hidden, 10, 2, F.identity), rank_in=middle, rank_out=None)
    return model


def make_trainer(comm: chainermn.CommunicatorBase, options: argparse.Namespace) -> Trainer:
    """Build this rank's part of the training; collective."""
    if comm.size > 2:
        raise ValueError("the model has parts for one or two ranks")
    device = chainer.get_device(f"@cupy:{comm.intra_rank}" if options.gpu else "@numpy")
    device.use()

    train, test = comm.bcast_obj(digits() if comm.rank == 0 else None)
    model = make_model(comm, options.hidden)
    if comm.rank == 0:
        model = L.Classifier(model)
    else:  # gets what it needs from rank 0, in as many steps
        train, test = map(chainermn.datasets.create_empty_dataset, (train, test))
    np.random.seed(0)  # the order of the examples, so that runs can be compared
    train_batches = chainer.iterators.SerialIterator(train, options.batch)
    test_batches = chainer.iterators.SerialIterator(test, 100, repeat=False, shuffle=False)

    model.to_device(device)
    optimizer = chainer.optimizers.Adam().setup(model)  # each rank updates its own parts
    updater = StandardUpdater(train_batches, optimizer, device=device)
    trainer = Trainer(updater, (options.epochs, "epoch"), out=options.out)
    trainer.extend(extensions.Evaluator(test_batches, model, device=device))
    if comm.rank == 0:
        columns = ["epoch", "main/loss", "validation/main/loss", "validation/main/accuracy"]
        trainer.extend(extensions.LogReport())
        trainer.extend(extensions.PrintReport(columns))
    return trainer


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--hidden", type=int, default=100, help="units of a hidden layer")
    parser.add_argument("--gpu", action="store_true", help="each rank takes a GPU of its host")
    parser.add_argument("--communicator", default="auto", help="naive, flat, pure_nccl, ...")
    parser.add_argument("--out", default="result", help="folder for the log")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    options = parse()
    make_trainer(chainermn.create_communicator(options.communicator), options).run()
