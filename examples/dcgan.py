"""A generative adversarial network: two models, two optimizers, one updater.

mpiexec -n 2 python -m mpi4py examples/dcgan.py

A. Radford et al., Unsupervised Representation Learning with Deep Convolutional Generative
Adversarial Networks (2015). The digits it has learnt to draw are in result/samples.png.
"""

from __future__ import annotations

import argparse
import os

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
from chainer.training import StandardUpdater, Trainer, extensions
from handwritten import digits
from PIL import Image

import nbmn as chainermn

LATENT = 20


class Generator(chainer.Chain):
    """Draws images of 8 by 8 pixels from random vectors."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        with self.init_scope():
            self.project = L.Linear(LATENT, 4 * width, nobias=True)
            self.norm1 = L.BatchNormalization(width)
            self.up1 = L.Deconvolution2D(width, width // 2, 4, stride=2, pad=1, nobias=True)
            self.norm2 = L.BatchNormalization(width // 2)
            self.up2 = L.Deconvolution2D(width // 2, 1, 4, stride=2, pad=1)

    def forward(self, z: chainer.Variable) -> chainer.Variable:
        h = F.reshape(self.project(z), (len(z), self.width, 2, 2))
        h = F.relu(self.norm1(h))
        h = F.relu(self.norm2(self.up1(h)))
        return F.sigmoid(self.up2(h))


class Discriminator(chainer.Chain):
    """Says how real an image looks."""

    def __init__(self, width: int) -> None:
        super().__init__()
        with self.init_scope():
            self.down1 = L.Convolution2D(1, width // 2, 4, stride=2, pad=1)
            self.down2 = L.Convolution2D(width // 2, width, 4, stride=2, pad=1, nobias=True)
            self.norm = L.BatchNormalization(width)
            self.judge = L.Linear(4 * width, 1)

    def forward(self, x: chainer.Variable) -> chainer.Variable:
        h = F.leaky_relu(self.down1(x))
        h = F.leaky_relu(self.norm(self.down2(h)))
        return self.judge(h)


class GANUpdater(StandardUpdater):
    """Updates the discriminator, then the generator; each update is collective."""

    def update_core(self) -> None:
        generator = self.get_optimizer("generator")
        discriminator = self.get_optimizer("discriminator")
        real, _ = self.converter(self.get_iterator("main").next(), self.device)
        z = self.device.xp.random.randn(len(real), LATENT).astype(np.float32)
        looks_real = discriminator.target(real)
        looks_fake = discriminator.target(generator.target(z))
        discriminator.update(discriminator_loss, discriminator.target, looks_real, looks_fake)
        generator.update(generator_loss, generator.target, looks_fake)


def discriminator_loss(
    model: chainer.Chain, looks_real: chainer.Variable, looks_fake: chainer.Variable
) -> chainer.Variable:
    loss = F.mean(F.softplus(-looks_real)) + F.mean(F.softplus(looks_fake))
    chainer.report({"loss": loss}, model)
    return loss


def generator_loss(model: chainer.Chain, looks_fake: chainer.Variable) -> chainer.Variable:
    loss = F.mean(F.softplus(-looks_fake))
    chainer.report({"loss": loss}, model)
    return loss


def draw(model: Generator, path: str, rows: int = 8) -> None:
    """Write what the generator draws from always the same vectors."""
    z = np.random.RandomState(0).randn(rows * rows, LATENT).astype(np.float32)
    with chainer.using_config("train", False), chainer.no_backprop_mode():
        images = chainer.backends.cuda.to_cpu(model(model.xp.asarray(z)).array)
    grid = images.reshape(rows, rows, 8, 8).transpose(0, 2, 1, 3).reshape(8 * rows, 8 * rows)
    picture = Image.fromarray(np.uint8(255 * grid))
    picture.resize((32 * rows, 32 * rows)).save(path)


def make_trainer(comm: chainermn.CommunicatorBase, options: argparse.Namespace) -> Trainer:
    """Build this rank's part of the training; collective."""
    device = chainer.get_device(f"@cupy:{comm.intra_rank}" if options.gpu else "@numpy")
    device.use()
    np.random.seed(comm.rank)  # each rank draws vectors of its own; weights come from rank 0

    train = digits(flat=False)[0] if comm.rank == 0 else None
    train = chainermn.scatter_dataset(train, comm, shuffle=True, seed=0)
    batches = chainer.iterators.SerialIterator(train, options.batch)

    optimizers = {}
    for name, model in [
        ("generator", Generator(options.width)),
        ("discriminator", Discriminator(options.width)),
    ]:
        adam = chainer.optimizers.Adam(alpha=2e-3, beta1=0.5)
        optimizers[name] = chainermn.create_multi_node_optimizer(adam, comm)
        optimizers[name].setup(model.to_device(device))

    updater = GANUpdater(batches, optimizers, device=device)
    trainer = Trainer(updater, (options.epochs, "epoch"), out=options.out)
    if comm.rank == 0:
        generator = optimizers["generator"].target
        trainer.extend(extensions.LogReport())
        trainer.extend(extensions.PrintReport(["epoch", "generator/loss", "discriminator/loss"]))
        trainer.extend(
            lambda trainer: draw(generator, os.path.join(trainer.out, "samples.png")),
            trigger=(1, "epoch"),
            name="draw",
        )
    return trainer


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch", type=int, default=50, help="examples per rank and step")
    parser.add_argument("--width", type=int, default=32, help="channels in the middle")
    parser.add_argument("--gpu", action="store_true", help="each rank takes a GPU of its host")
    parser.add_argument("--communicator", default="auto", help="naive, flat, pure_nccl, ...")
    parser.add_argument("--out", default="result", help="folder for the log and the samples")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    options = parse()
    make_trainer(chainermn.create_communicator(options.communicator), options).run()
