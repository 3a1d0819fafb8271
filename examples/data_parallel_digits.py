"""Data-parallel training: each rank has its share of the examples, all have the same model.

mpiexec -n 2 python -m mpi4py examples/data_parallel_digits.py
"""

from __future__ import annotations

import argparse

import chainer
import chainer.functions as F
import chainer.links as L
from chainer.training import StandardUpdater, Trainer, extensions
from handwritten import digits

import nbmn as chainermn


def make_trainer(comm: chainermn.CommunicatorBase, options: argparse.Namespace) -> Trainer:
    """Build this rank's part of the training; collective."""
    device = chainer.get_device(f"@cupy:{comm.intra_rank}" if options.gpu else "@numpy")
    device.use()

    train, test = digits() if comm.rank == 0 else (None, None)
    train = chainermn.scatter_dataset(train, comm, shuffle=True, seed=0)
    test = chainermn.scatter_dataset(test, comm, force_equal_length=False)
    train_batches = chainer.iterators.SerialIterator(train, options.batch)
    test_batches = chainer.iterators.SerialIterator(test, 100, repeat=False, shuffle=False)

    hidden = L.Linear(64, options.hidden)
    model = L.Classifier(chainer.Sequential(hidden, F.relu, L.Linear(options.hidden, 10)))
    model.to_device(device)
    optimizer = chainermn.create_multi_node_optimizer(chainer.optimizers.Adam(), comm)
    optimizer.setup(model)

    updater = StandardUpdater(train_batches, optimizer, device=device)
    trainer = Trainer(updater, (options.epochs, "epoch"), out=options.out)
    evaluator = extensions.Evaluator(test_batches, model, device=device)
    trainer.extend(chainermn.create_multi_node_evaluator(evaluator, comm))
    if comm.rank == 0:
        columns = ["epoch", "main/loss", "validation/main/loss", "validation/main/accuracy"]
        trainer.extend(extensions.LogReport())
        trainer.extend(extensions.PrintReport(columns))
    return trainer


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch", type=int, default=32, help="examples per rank and step")
    parser.add_argument("--hidden", type=int, default=100, help="units of the hidden layer")
    parser.add_argument("--gpu", action="store_true", help="each rank takes a GPU of its host")
    parser.add_argument("--communicator", default="auto", help="naive, flat, pure_nccl, ...")
    parser.add_argument("--out", default="result", help="folder for the log")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    options = parse()
    make_trainer(chainermn.create_communicator(options.communicator), options).run()
