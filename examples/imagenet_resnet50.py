"""ResNet-50 on ImageNet, or on generated images when no list of images is given.

mpiexec -n 2 python -m mpi4py examples/imagenet_resnet50.py --size 32 --examples 64 --width 8
mpiexec -n 8 python -m mpi4py examples/imagenet_resnet50.py train.txt val.txt --gpu --batch 32

A list has a path and a label in each line. The learning rate grows with the number of ranks,
after a warm-up (P. Goyal et al., Accurate, Large Minibatch SGD, 2017). Started again with the same
--out it goes on from the last snapshot.
"""

from __future__ import annotations

import argparse

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
from chainer.training import StandardUpdater, Trainer, extensions

import nbmn as chainermn


class Bottleneck(chainer.Chain):
    """Three convolutions beside a shortcut."""

    def __init__(self, n_in: int, n_middle: int, n_out: int, stride: int) -> None:
        super().__init__()
        with self.init_scope():
            self.conv1 = L.Convolution2D(n_in, n_middle, 1, nobias=True)
            self.norm1 = L.BatchNormalization(n_middle)
            self.conv2 = L.Convolution2D(n_middle, n_middle, 3, stride, 1, nobias=True)
            self.norm2 = L.BatchNormalization(n_middle)
            self.conv3 = L.Convolution2D(n_middle, n_out, 1, nobias=True)
            # Starts as the shortcut alone, which makes large batches trainable.
            self.norm3 = L.BatchNormalization(n_out, initial_gamma=0)
            if n_in != n_out:
                self.conv0 = L.Convolution2D(n_in, n_out, 1, stride, nobias=True)
                self.norm0 = L.BatchNormalization(n_out)

    def forward(self, x: chainer.Variable) -> chainer.Variable:
        h = F.relu(self.norm1(self.conv1(x)))
        h = F.relu(self.norm2(self.conv2(h)))
        h = self.norm3(self.conv3(h))
        return F.relu(h + (self.norm0(self.conv0(x)) if hasattr(self, "conv0") else x))


class ResNet50(chainer.Chain):
    """K. He et al., Deep Residual Learning for Image Recognition (2015)."""

    def __init__(self, classes: int, width: int = 64) -> None:
        super().__init__()
        blocks, n_in = chainer.Sequential(), width
        for stage, length in enumerate((3, 4, 6, 3)):
            n_middle = width * 2**stage
            for number in range(length):
                stride = 2 if stage > 0 and number == 0 else 1
                blocks.append(Bottleneck(n_in, n_middle, 4 * n_middle, stride))
                n_in = 4 * n_middle
        with self.init_scope():
            self.conv = L.Convolution2D(3, width, 7, 2, 3, nobias=True)
            self.norm = L.BatchNormalization(width)
            self.blocks = blocks
            self.out = L.Linear(n_in, classes)

    def forward(self, x: chainer.Variable) -> chainer.Variable:
        h = F.max_pooling_2d(F.relu(self.norm(self.conv(x))), 3, stride=2)
        return self.out(F.mean(self.blocks(h), axis=(2, 3)))


class Generated(chainer.dataset.DatasetMixin):
    """Images made when they are read: stripes whose direction is the class, in noise."""

    def __init__(self, length: int, size: int, classes: int, seed: int) -> None:
        self.length, self.size, self.classes, self.seed = length, size, classes, seed

    def __len__(self) -> int:
        return self.length

    def get_example(self, i: int) -> tuple[np.ndarray, np.int32]:
        rng = np.random.RandomState([self.seed, i])
        label = rng.randint(self.classes)
        angle = np.pi * label / self.classes
        y, x = np.mgrid[: self.size, : self.size] / self.size
        stripes = np.sin(25 * (x * np.cos(angle) + y * np.sin(angle)) + rng.uniform(0, 2 * np.pi))
        image = stripes + rng.normal(0, 0.5, (3, self.size, self.size))
        return image.astype(np.float32), np.int32(label)


class Prepared:
    """Crops, flips and scales an image; at random for training."""

    def __init__(self, size: int, random: bool) -> None:
        self.size, self.random = size, random

    def __call__(self, example: tuple[np.ndarray, np.int32]) -> tuple[np.ndarray, np.int32]:
        image, label = example
        spare = [max(length - self.size, 0) for length in image.shape[1:]]
        top, left = [np.random.randint(n + 1) if self.random else n // 2 for n in spare]
        image = image[:, top : top + self.size, left : left + self.size]
        if self.random and np.random.randint(2):
            image = image[:, :, ::-1]
        return image / 127.5 - 1, label


def datasets(options: argparse.Namespace) -> tuple:
    """Return all examples to train and to test with; the images are read when used."""
    if options.train is None:
        return tuple(
            Generated(length, options.size, options.classes, seed)
            for seed, length in enumerate((options.examples, options.examples // 4))
        )
    return tuple(
        chainer.datasets.TransformDataset(
            chainer.datasets.LabeledImageDataset(path, options.root),
            Prepared(options.size, random),
        )
        for path, random in ((options.train, True), (options.val, False))
    )


def set_learning_rate(trainer: Trainer, comm: chainermn.CommunicatorBase, batch: int) -> None:
    """Warm up for five epochs, then divide by ten every thirty."""
    epoch = trainer.updater.epoch_detail
    one, all_ranks = 0.1 * batch / 256, 0.1 * batch * comm.size / 256
    rate = one + (all_ranks - one) * min(epoch / 5, 1)
    trainer.updater.get_optimizer("main").lr = rate * 0.1 ** (epoch // 30)


def make_trainer(comm: chainermn.CommunicatorBase, options: argparse.Namespace) -> Trainer:
    """Build this rank's part of the training; collective."""
    device = chainer.get_device(f"@cupy:{comm.intra_rank}" if options.gpu else "@numpy")
    device.use()

    train, test = datasets(options) if comm.rank == 0 else (None, None)
    train = chainermn.scatter_dataset(train, comm, shuffle=True, seed=0)
    test = chainermn.scatter_dataset(test, comm, force_equal_length=False)
    iterator = chainer.iterators.MultithreadIterator
    train_batches = iterator(train, options.batch, n_threads=options.loaders)
    test_batches = iterator(
        test, options.batch, repeat=False, shuffle=False, n_threads=options.loaders
    )

    model = L.Classifier(ResNet50(options.classes, options.width))
    if options.batch < 16:  # too few images for statistics of their own
        model = chainermn.links.create_mnbn_model(model, comm)
    model.to_device(device)
    optimizer = chainermn.create_multi_node_optimizer(
        chainer.optimizers.MomentumSGD(momentum=0.9), comm, options.double_buffering
    )
    optimizer.setup(model)
    optimizer.add_hook(chainer.optimizer_hooks.WeightDecay(1e-4))

    updater = StandardUpdater(train_batches, optimizer, device=device)
    trainer = Trainer(updater, (options.epochs, "epoch"), out=options.out)
    trainer.extend(
        lambda trainer: set_learning_rate(trainer, comm, options.batch),
        name="learning_rate",
        trigger=(1, "iteration"),
        call_before_training=True,
    )
    # Running statistics differ between ranks: before a model is tested, they are averaged.
    trainer.extend(chainermn.extensions.AllreducePersistent(model, comm))
    evaluator = extensions.Evaluator(test_batches, model, device=device)
    trainer.extend(chainermn.create_multi_node_evaluator(evaluator, comm))
    if comm.rank == 0:
        columns = ["epoch", "main/loss", "main/accuracy", "validation/main/accuracy"]
        trainer.extend(extensions.LogReport())
        trainer.extend(extensions.PrintReport(columns))
    # Rank 0 has extensions of its own, all others have the same state and share a file.
    snapshot = extensions.snapshot(n_retains=2, autoload=True)
    trainer.extend(chainermn.extensions.multi_node_snapshot(comm, snapshot, [0]))
    return trainer


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("train", nargs="?", help="list of images to train with")
    parser.add_argument("val", nargs="?", help="list of images to test with")
    parser.add_argument("--root", default=".", help="where the images are")
    parser.add_argument("--size", type=int, default=224, help="pixels of a side")
    parser.add_argument("--classes", type=int, help="default: 1000, or 10 generated ones")
    parser.add_argument("--examples", type=int, default=1280, help="images to generate")
    parser.add_argument("--width", type=int, default=64, help="channels of the first layer")
    parser.add_argument("--epochs", type=int, default=90)
    parser.add_argument("--batch", type=int, default=8, help="examples per rank and step")
    parser.add_argument("--loaders", type=int, default=2, help="threads that read images")
    parser.add_argument("--double-buffering", action="store_true", help="average while computing")
    parser.add_argument("--gpu", action="store_true", help="each rank takes a GPU of its host")
    parser.add_argument("--communicator", default="auto", help="naive, flat, pure_nccl, ...")
    parser.add_argument("--out", default="result", help="folder for the log and snapshots")
    options = parser.parse_args(arguments)
    if (options.train is None) != (options.val is None):
        parser.error("give a list to train with and one to test with, or none")
    options.classes = options.classes or (10 if options.train is None else 1000)
    return options


if __name__ == "__main__":
    options = parse()
    make_trainer(chainermn.create_communicator(options.communicator), options).run()
