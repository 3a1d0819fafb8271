"""Convolutions whose output channels are spread over the ranks.

mpiexec -n 2 python -m mpi4py examples/channel_parallel_convolution.py

All ranks see the same batch. Each computes its part of the channels, and gets the others' for
the next layer. Any number of ranks that divides the channels learns the same.
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


class ChannelParallelConvolution2D(L.Convolution2D):
    """A convolution of which this rank has a part: some of the output channels."""

    def __init__(
        self, comm: chainermn.CommunicatorBase, n_in: int, n_out: int, ksize: int, seed: int
    ) -> None:
        if n_out % comm.size:
            raise ValueError(f"{n_out} channels cannot be divided among {comm.size} ranks")
        part = n_out // comm.size
        # All ranks draw the weights of all channels, so that these do not depend on who has them.
        weights = np.empty((n_out, n_in, ksize, ksize), np.float32)
        chainer.initializers.LeCunNormal(rng=np.random.RandomState(seed))(weights)
        mine = weights[comm.rank * part : (comm.rank + 1) * part]
        super().__init__(n_in, part, ksize, pad=ksize // 2, initialW=mine)
        self.comm = comm

    def forward(self, x: chainer.Variable) -> chainer.Variable:
        """Return the channels of all ranks."""
        parts = chainermn.functions.allgather(self.comm, super().forward(x))
        return F.concat(parts, axis=1)


class CountedOnce(chainer.FunctionNode):
    """Passes values on, and gradients divided by the number of ranks.

    The ranks all compute the same loss of what they gather, and a convolution's gradient is the
    sum over them; without this it would be that of ``comm.size`` losses.
    """

    def __init__(self, comm: chainermn.CommunicatorBase) -> None:
        self.ranks = comm.size

    def forward(self, inputs: tuple) -> tuple:
        return inputs

    def backward(self, indexes: tuple, grads: tuple) -> tuple:
        return (grads[0] / self.ranks,)


class Network(chainer.Chain):
    """Two convolutions over all ranks, and a layer that every rank has for itself."""

    def __init__(self, comm: chainermn.CommunicatorBase, channels: int) -> None:
        super().__init__()
        self.comm = comm
        weights = chainer.initializers.LeCunNormal(rng=np.random.RandomState(0))
        with self.init_scope():
            self.conv1 = ChannelParallelConvolution2D(comm, 1, channels, 3, seed=1)
            self.conv2 = ChannelParallelConvolution2D(comm, channels, 2 * channels, 3, seed=2)
            self.out = L.Linear(32 * channels, 10, initialW=weights)

    def forward(self, x: chainer.Variable) -> chainer.Variable:
        h = F.relu(self.conv2(F.relu(self.conv1(x))))
        (h,) = CountedOnce(self.comm).apply((h,))
        return self.out(F.max_pooling_2d(h, 2))


def make_trainer(comm: chainermn.CommunicatorBase, options: argparse.Namespace) -> Trainer:
    """Build this rank's part of the training; collective."""
    device = chainer.get_device(f"@cupy:{comm.intra_rank}" if options.gpu else "@numpy")
    device.use()

    train, test = comm.bcast_obj(digits(flat=False) if comm.rank == 0 else None)
    np.random.seed(0)  # the order of the examples, so that runs can be compared
    batches = chainer.iterators.SerialIterator(train, options.batch)
    train_batches = chainermn.iterators.create_multi_node_iterator(batches, comm)
    test_batches = chainer.iterators.SerialIterator(test, 100, repeat=False, shuffle=False)

    model = L.Classifier(Network(comm, options.channels))
    model.to_device(device)
    # Not a multi-node optimizer: what a rank shares with others gets the same gradient anyway.
    optimizer = chainer.optimizers.MomentumSGD(0.05).setup(model)
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
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch", type=int, default=50)
    parser.add_argument("--channels", type=int, default=8, help="of the first convolution")
    parser.add_argument("--gpu", action="store_true", help="each rank takes a GPU of its host")
    parser.add_argument("--communicator", default="auto", help="naive, flat, pure_nccl, ...")
    parser.add_argument("--out", default="result", help="folder for the log")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    options = parse()
    make_trainer(chainermn.create_communicator(options.communicator), options).run()
