"""Sequence to sequence: learns to write a row of digits backwards, without being told how.

mpiexec -n 2 python -m mpi4py examples/seq2seq.py

I. Sutskever et al., Sequence to Sequence Learning with Neural Networks (2014).
"""

from __future__ import annotations

import argparse

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
from chainer.training import StandardUpdater, Trainer, extensions

import nbmn as chainermn

DIGITS = 10
END = DIGITS  # also what the decoder starts from


class Seq2seq(chainer.Chain):
    """An encoder reads the source; a decoder starts from its state and writes the target."""

    def __init__(self, units: int) -> None:
        super().__init__()
        with self.init_scope():
            self.embed = L.EmbedID(DIGITS + 1, units)
            self.encoder = L.NStepLSTM(1, units, units, dropout=0.0)
            self.decoder = L.NStepLSTM(1, units, units, dropout=0.0)
            self.output = L.Linear(units, DIGITS + 1)

    def forward(self, sources: list, targets: list) -> chainer.Variable:
        """Return the mean loss per symbol, given the right symbols before each."""
        h, c, _ = self.encoder(None, None, [self.embed(source) for source in sources])
        before = [self.xp.r_[END, target].astype(np.int32) for target in targets]
        after = [self.xp.r_[target, END].astype(np.int32) for target in targets]
        _, _, ys = self.decoder(h, c, [self.embed(symbols) for symbols in before])
        y, t = self.output(F.concat(ys, axis=0)), self.xp.concatenate(after)
        loss = F.softmax_cross_entropy(y, t)
        chainer.report({"loss": loss, "accuracy": F.accuracy(y, t)}, self)
        return loss

    def write(self, sources: list, longest: int = 20) -> list[list[int]]:
        """Return the likeliest target, symbol by symbol."""
        with chainer.using_config("train", False), chainer.no_backprop_mode():
            h, c, _ = self.encoder(None, None, [self.embed(source) for source in sources])
            last = self.xp.full(len(sources), END, np.int32)
            written = []
            for _ in range(longest):
                inputs = F.split_axis(self.embed(last), len(sources), 0, force_tuple=True)
                h, c, ys = self.decoder(h, c, inputs)
                last = self.output(F.concat(ys, axis=0)).array.argmax(1).astype(np.int32)
                written.append(last)
        rows = chainer.backends.cuda.to_cpu(self.xp.stack(written, axis=1)).tolist()
        return [row[: row.index(END)] if END in row else row for row in rows]

    def is_exact(self, sources: list, targets: list) -> list[bool]:
        """Say of each source whether its target is written without a mistake."""
        written = self.write(sources)
        return [row == list(target) for row, target in zip(written, targets, strict=True)]


def make_pairs(count: int, longest: int, seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Draw rows of 1 to ``longest`` digits, each with itself backwards."""
    rng = np.random.RandomState(seed)
    rows = [rng.randint(0, DIGITS, rng.randint(1, longest + 1)) for _ in range(count)]
    return [(row.astype(np.int32), row[::-1].astype(np.int32)) for row in rows]


@chainer.dataset.converter()
def convert(batch: list, device: chainer.backend.Device) -> dict[str, list]:
    """Keep the rows apart, for they differ in length."""
    sources, targets = zip(*batch, strict=True)
    return {
        "sources": [device.send(source) for source in sources],
        "targets": [device.send(target) for target in targets],
    }


class Exactness(chainermn.extensions.GenericMultiNodeEvaluator):
    """Reports which share of all ranks' rows the model writes without a mistake."""

    def aggregate(self, results: list[list[bool]]) -> None:
        chainer.report({"validation/exact": np.mean(np.concatenate(results))})


def make_trainer(comm: chainermn.CommunicatorBase, options: argparse.Namespace) -> Trainer:
    """Build this rank's part of the training; collective."""
    device = chainer.get_device(f"@cupy:{comm.intra_rank}" if options.gpu else "@numpy")
    device.use()

    train = make_pairs(options.pairs, options.longest, seed=0) if comm.rank == 0 else None
    test = make_pairs(200, options.longest, seed=1) if comm.rank == 0 else None
    train = chainermn.scatter_dataset(train, comm)
    test = chainermn.scatter_dataset(test, comm, force_equal_length=False)
    train_batches = chainer.iterators.SerialIterator(train, options.batch)
    test_batches = chainer.iterators.SerialIterator(test, 100, repeat=False, shuffle=False)

    model = Seq2seq(options.units)
    model.to_device(device)
    optimizer = chainermn.create_multi_node_optimizer(chainer.optimizers.Adam(5e-3), comm)
    optimizer.setup(model)
    optimizer.add_hook(chainer.optimizer_hooks.GradientClipping(5))

    updater = StandardUpdater(train_batches, optimizer, converter=convert, device=device)
    trainer = Trainer(updater, (options.epochs, "epoch"), out=options.out)
    trainer.extend(Exactness(comm, test_batches, model.is_exact, device, convert))
    if comm.rank == 0:
        columns = ["epoch", "main/loss", "main/accuracy", "validation/exact"]
        trainer.extend(extensions.LogReport())
        trainer.extend(extensions.PrintReport(columns))
    return trainer


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch", type=int, default=32, help="examples per rank and step")
    parser.add_argument("--units", type=int, default=64, help="of each layer")
    parser.add_argument("--pairs", type=int, default=2000, help="examples on all ranks together")
    parser.add_argument("--longest", type=int, default=5, help="digits of the longest row")
    parser.add_argument("--gpu", action="store_true", help="each rank takes a GPU of its host")
    parser.add_argument("--communicator", default="auto", help="naive, flat, pure_nccl, ...")
    parser.add_argument("--out", default="result", help="folder for the log")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    options = parse()
    make_trainer(chainermn.create_communicator(options.communicator), options).run()
