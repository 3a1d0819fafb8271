"""Averaging gradients over the ranks of one host: nbmn against its peers, in one run.

From ``param.grad`` on every rank to the mean in ``param.grad`` on every rank. The peers, in
the same processes, on the same arrays, taking turns repetition by repetition:

chainermn    Chainer's own ``naive`` communicator, also from ``param.grad`` to ``param.grad``
mpi          one blocking ``MPI.Allreduce`` of one flat buffer, without packing and division
gloo         ``torch.distributed.all_reduce`` from ``param.grad`` to ``param.grad``: gathered into
             one tensor, summed, divided, copied back (if torch is there)
gloo-flat    the same of one flat tensor, without packing and division
copy         every rank copies the same bytes once, at the same time: near the limit, since
             each rank has to read its gradients and to write the means

All ranks meet in a barrier before each repetition; its time is that of the slowest rank.

    python benchmarks/allreduce.py --ranks 2 4 8
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PEERS = ("chainermn", "mpi", "gloo", "gloo-flat", "copy")
OF_GRADIENTS = ("nbmn", "chainermn", "gloo")
"""Who begins and ends with ``param.grad``; the others work on one flat buffer."""
GOALS = {
    ("resnet50", 2): {"chainermn": 3.0, "gloo": 4.0, "copy": 1.6},
    ("resnet50", 4): {"chainermn": 2.0, "mpi": 2.0, "gloo": 2.0},
    ("resnet50", 8): {"chainermn": 2.0, "mpi": 2.0, "gloo": 2.0},
}
WARM_UP = 10  # nbmn tries out its ways in the first averagings


def resnet50() -> list[tuple[int, ...]]:
    """Shapes of the 161 parameters of a ResNet-50, 25.56 million numbers."""
    shapes: list[tuple[int, ...]] = []

    def convolution(inside: int, outside: int, kernel: int) -> None:
        shapes.extend([(outside, inside, kernel, kernel), (outside,), (outside,)])

    convolution(3, 64, 7)
    inside = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            convolution(inside, width, 1)
            convolution(width, width, 3)
            convolution(width, 4 * width, 1)
            if block == 0:
                convolution(inside, 4 * width, 1)
            inside = 4 * width
    return [*shapes, (1000, 2048), (1000,)]


def perceptron(*units: int) -> list[tuple[int, ...]]:
    """Shapes of the weights and biases of a multilayer perceptron."""
    layers = zip(units[1:], units[:-1], strict=True)
    return [shape for pair in layers for shape in (pair, pair[:1])]


MODELS = {
    "resnet50": resnet50(),
    "mlp": perceptron(784, 1000, 200, 10),
    "small": perceptron(784, 60, 50, 10),
}


class Bench:
    """One model's gradients on this rank, and the ways to average them."""

    def __init__(self, shapes: list[tuple[int, ...]], names: list[str], dtype: str) -> None:
        import chainer
        import numpy as np
        from mpi4py import MPI

        self.world = MPI.COMM_WORLD
        rank, size = self.world.rank, self.world.size
        self.model = chainer.Link()
        with self.model.init_scope():
            for n, shape in enumerate(shapes):
                setattr(self.model, f"p{n:03}", chainer.Parameter(np.zeros(shape, dtype)))
        self.params = [param for _, param in sorted(self.model.namedparams())]
        self.grads = [np.full(p.shape, rank + 1, dtype) for p in self.params]
        self.mean = (size + 1) / 2
        self.flat = np.full(sum(g.size for g in self.grads), rank + 1, dtype)
        self.nbytes = self.flat.nbytes
        self.seconds = np.zeros(1)
        makers = {
            "nbmn": self._nbmn,
            "chainermn": self._chainermn,
            "mpi": self._mpi,
            "gloo": self._gloo,
            "gloo-flat": self._gloo_flat,
            "copy": self._copy,
        }
        self.runs = {name: makers[name]() for name in names}

    def _nbmn(self):
        import nbmn

        comm = nbmn.create_communicator()

        def run():
            comm.multi_node_mean_grad(self.model)

        for _ in range(WARM_UP):
            self.reset("nbmn")
            run()
            assert all((p.grad == self.mean).all() for p in self.params), "wrong means"
        return run

    def _chainermn(self):
        import chainermn

        comm = chainermn.create_communicator("naive")
        return lambda: comm.multi_node_mean_grad(self.model)

    def _mpi(self):
        from mpi4py import MPI

        return lambda: self.world.Allreduce(MPI.IN_PLACE, self.flat)

    def _torch(self):
        import torch
        import torch.distributed

        torch.set_num_threads(1)
        if not torch.distributed.is_initialized():
            path = Path(os.environ["BENCHMARK_FOLDER"]) / "gloo"
            store = torch.distributed.FileStore(str(path), self.world.size)
            torch.distributed.init_process_group(
                "gloo", store=store, rank=self.world.rank, world_size=self.world.size
            )
        return torch

    def _gloo(self):
        torch = self._torch()
        buffer = torch.from_numpy(self.flat.copy())
        grads = [torch.from_numpy(grad) for grad in self.grads]
        flat_grads = [grad.view(-1) for grad in grads]
        parts = buffer.split([grad.numel() for grad in grads])

        def run():
            torch.cat(flat_grads, out=buffer)
            torch.distributed.all_reduce(buffer)
            buffer.div_(self.world.size)
            torch._foreach_copy_(flat_grads, parts)

        self.reset("gloo")
        run()
        assert all((p.grad == self.mean).all() for p in self.params), "wrong means"
        return run

    def _gloo_flat(self):
        torch = self._torch()
        tensor = torch.from_numpy(self.flat)
        return lambda: torch.distributed.all_reduce(tensor)

    def _copy(self):
        import numpy as np

        target = self.flat.copy()
        return lambda: np.copyto(target, self.flat)

    def reset(self, name: str) -> None:
        """Give this rank its own gradients anew, as after a backward pass."""
        # What is used next is written last: equally much of it is in the cache.
        if name in OF_GRADIENTS:
            self.flat.fill(self.world.rank + 1)
        for param, grad in zip(self.params, self.grads, strict=True):
            grad.fill(self.world.rank + 1)
            param.grad = grad
        if name not in OF_GRADIENTS:
            self.flat.fill(self.world.rank + 1)

    def time(self, name: str) -> float:
        """Return the seconds of the slowest rank."""
        from mpi4py import MPI

        self.reset(name)
        come_to(self.world.Ibarrier())
        began = time.perf_counter()
        self.runs[name]()
        self.seconds[0] = time.perf_counter() - began
        come_to(self.world.Iallreduce(MPI.IN_PLACE, self.seconds, MPI.MAX))
        return float(self.seconds[0])


def come_to(request) -> None:
    """Wait for the other ranks, and leave the core to them: MPI's blocking calls would take it
    from those that are still being timed."""
    while not request.Test():
        os.sched_yield()


def pin() -> None:
    """Give each rank a core, in turn: left alone, two ranks share one now and then."""
    from mpi4py import MPI

    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[MPI.COMM_WORLD.rank % len(cores)]})


def on_ranks(model: str, dtype: str, names: list[str], seconds: float) -> None:
    """Measure on the ranks of this ``mpiexec``; rank 0 prints."""
    pin()
    bench = Bench(MODELS[model], names, dtype)
    for name in names:
        bench.time(name)
    began = time.perf_counter()
    for name in names:
        bench.time(name)
    spent = bench.world.bcast(time.perf_counter() - began)
    repeat = max(5, min(301, int(seconds / spent)))
    times: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(repeat):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            times[name].append(bench.time(name))
    if bench.world.rank == 0:
        report(model, dtype, bench.world.size, bench.nbytes, times)
    if any(name.startswith("gloo") for name in names):
        import torch.distributed

        torch.distributed.destroy_process_group()


def report(model: str, dtype: str, ranks: int, nbytes: int, times: dict[str, list[float]]) -> None:
    """Print times, and ratios of times within a repetition."""
    mine = times["nbmn"]
    goals = GOALS.get((model, ranks), {}) if dtype == "float32" else {}
    print(f"{model}, {dtype}, {ranks} ranks, {nbytes / 1e6:.2f} MB, {len(mine)} repetitions")
    for name, theirs in times.items():
        low, middle, high = quartiles([1e3 * t for t in theirs])
        least = 1e3 * min(theirs)
        line = f"  {name:10s} {middle:9.3f} ms ({low:.3f} to {high:.3f}; least {least:.3f})"
        if name == "copy":
            low, middle, high = quartiles([m / t for t, m in zip(theirs, mine, strict=True)])
            line += f"   nbmn takes {middle:.2f} times as long ({low:.2f} to {high:.2f})"
        elif name != "nbmn":
            low, middle, high = quartiles([t / m for t, m in zip(theirs, mine, strict=True)])
            line += f"   nbmn is {middle:.2f} times as fast ({low:.2f} to {high:.2f})"
        print(line + (f", goal {goals[name]:g}" if name in goals else ""))
    if "copy" in times:
        rate = 2 * nbytes * ranks / statistics.median(times["copy"]) / 1e9
        print(f"  all ranks together move {rate:.1f} GB/s while they copy")
    sys.stdout.flush()


def quartiles(values: list[float]) -> tuple[float, float, float]:
    low, middle, high = statistics.quantiles(values, n=4)
    return low, middle, high


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--dtype", choices=("float16", "float32", "float64"), default="float32")
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=list(PEERS))
    parser.add_argument("--seconds", type=float, default=12.0, help="for each model and count")
    parser.add_argument("--inside", metavar="MODEL", help=argparse.SUPPRESS)
    args = parser.parse_args()

    names = ["nbmn", *args.peers]
    if args.inside:
        on_ranks(args.inside, args.dtype, names, args.seconds)
        return
    if subprocess.run([sys.executable, "-c", "import torch"], stderr=subprocess.DEVNULL).returncode:
        print("without gloo: torch is not installed")
        names = [name for name in names if not name.startswith("gloo")]
    mpiexec = Path(sys.executable).with_name("mpiexec")
    for model in args.models:
        for ranks in args.ranks:
            with tempfile.TemporaryDirectory() as folder:
                command = [mpiexec, "-n", str(ranks), sys.executable, __file__, "--inside", model]
                options = ["--dtype", args.dtype, "--seconds", str(args.seconds)]
                options += ["--peers", *names[1:]]
                environment = {
                    **os.environ,
                    "OMP_NUM_THREADS": "1",
                    "OPENBLAS_NUM_THREADS": "1",
                    "BENCHMARK_FOLDER": folder,
                }
                subprocess.run([*command, *options], env=environment, check=True)


if __name__ == "__main__":
    main()
