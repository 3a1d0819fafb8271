"""Several ranks on one GPU: NCCL is not asked, and all goes through host memory, with a note."""

from __future__ import annotations

import statistics
import time
import warnings

import chainer
import chainer.functions as F
import chainer.links as L
import check_collectives
import cupy
import numpy as np
from gpu_tools import STANDIN, Report
from gpu_values import averages, broadcasts, close, model_of, put, same

import nbmn

NAMES = ("pure_nccl", "auto", "non_cuda_aware", "shared_memory", "hierarchical", "two_dimensional")
WIRES = ("float16", "bfloat16", "float32")
LARGE = ((64, 3, 7, 7), (2048, 1000), (512, 512, 3, 3), *[(256, 1024, 1, 1)] * 20, *[(1024,)] * 80)


def run(report: Report) -> None:
    notes(report)
    for name in NAMES:
        means(name)
        broadcasts(nbmn.create_communicator(name, timeout=60))
    comm = nbmn.create_communicator("pure_nccl", timeout=60)
    sums(comm)
    carried(comm)
    batch_normalization(comm)
    training(comm)
    report("communicators", names=list(NAMES), ranks=comm.size)
    speed(comm, report)


def notes(report: Report) -> None:
    """Rank 0 says once why, and which ranks share the GPU."""
    comm = nbmn.create_communicator("pure_nccl", timeout=60)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for seed in range(3):
            averages(comm, seed=seed)
    told = [str(w.message) for w in caught if "on one GPU" in str(w.message)]
    assert len(told) == (comm.rank == 0), told
    ranks = ", ".join(map(str, range(comm.size)))
    assert all(f"ranks {ranks} are on one GPU" in text for text in told), told
    report("note", text=told[0] if told else "")


def means(name: str) -> None:
    comm = nbmn.create_communicator(name, timeout=60)
    for seed, dtype in enumerate(("float16", "float32", "float64")):
        averages(comm, dtype, seed)
    for wire in WIRES:
        comm.set_config("allreduce_grad_dtype", wire)
        averages(comm, "float32", 5, wire)
    comm.set_config("allreduce_grad_dtype", None)
    # Each gradient is missing on one rank, and counts as zero there.
    model, means = model_of(comm.rank, comm.size, seed=6)
    for number in range(len(means)):
        grads, _ = model_of(number % comm.size, comm.size, seed=6)
        gone = getattr(grads, f"p{number}").grad.get()
        if comm.rank == number % comm.size:
            getattr(model, f"p{number}").grad = None
        means[number] = means[number] - gone.astype(np.float64) / comm.size
    comm.multi_node_mean_grad(model)
    for number, mean in enumerate(means):
        same(getattr(model, f"p{number}").grad, mean.astype("f"), 1e-6, f"{name}, missing")


def sums(comm) -> None:
    for dtype in check_collectives.SUMMED:
        for host in check_collectives.samples(dtype):
            mine = host + np.asarray(comm.rank, host.dtype)
            everyone = [host + np.asarray(rank, host.dtype) for rank in range(comm.size)]
            with np.errstate(over="ignore"):  # integers wrap around
                expected = np.asarray(sum(everyone[1:], everyone[0]), dtype)
            rtol = 2e-3 if dtype == "float16" else 1e-6 if expected.dtype.kind in "fc" else 0.0
            same(comm.allreduce(put(mine)), expected, rtol, f"sum of {dtype}")


def carried(comm) -> None:
    rank, size = comm.rank, comm.size
    for dtype in check_collectives.CARRIED:
        hosts = [np.asarray(np.arange(6 * (r + 1)) % 2 + r, dtype) for r in range(size)]
        mine = put(hosts[rank])
        root = size - 1
        same(comm.bcast(mine, root=root), hosts[root], what=f"bcast {dtype}")
        for got, host in zip(comm.allgather(mine), hosts, strict=True):
            same(got, host, what=f"allgather {dtype}")
        gathered = comm.gather(mine, root=root)
        assert (gathered is None) == (rank != root)
        for got, host in zip(gathered or (), hosts, strict=rank == root):
            same(got, host, what=f"gather {dtype}")
        parts = [put(hosts[to]) for to in range(size)] if rank == root else None
        same(comm.scatter(parts, root=root), hosts[rank], what=f"scatter {dtype}")
        for got in comm.alltoall([put(hosts[to]) for to in range(size)]):
            same(got, hosts[rank], what=f"alltoall {dtype}")
        if rank % 2 == 0 and rank + 1 < size:
            comm.send(mine, rank + 1, tag=3)
        elif rank % 2:
            same(comm.recv(rank - 1, tag=3), hosts[rank - 1], what=f"recv {dtype}")


def batch_normalization(comm) -> None:
    """Statistics over all ranks' images are those of one process with all of them."""
    whole = np.random.default_rng(1).normal(3, 2, (8 * comm.size, 4, 5, 5)).astype("f")
    weights = np.random.default_rng(2).normal(size=whole.shape).astype("f")
    link = L.BatchNormalization(4)
    x = chainer.Variable(whole)
    y = link(x)
    y.grad = weights
    y.backward()
    mine = slice(8 * comm.rank, 8 * comm.rank + 8)
    spread = nbmn.links.MultiNodeBatchNormalization(4, comm)
    spread.to_device("@cupy:0")
    v = chainer.Variable(put(whole[mine]))
    out = spread(v)
    out.grad = put(weights[mine])
    out.backward()
    same(out.array, y.array[mine], 1e-5, "batch normalization", kernels=True)
    same(v.grad, x.grad[mine], 1e-4, "batch normalization's gradient", kernels=True)
    same(spread.avg_var, link.avg_var, 1e-5, "batch normalization's variance", kernels=True)


class Small(chainer.Chain):
    """A convolution and a layer; with the same values wherever it is made."""

    def __init__(self) -> None:
        super().__init__()
        rng = np.random.RandomState(0)
        with self.init_scope():
            self.conv = L.Convolution2D(1, 4, 3, initialW=rng.randn(4, 1, 3, 3).astype("f") / 3)
            self.out = L.Linear(144, 5, initialW=rng.randn(5, 144).astype("f") / 12)

    def forward(self, x, t):
        return F.softmax_cross_entropy(self.out(F.tanh(self.conv(x))), t)


def training(comm) -> None:
    """A few steps end where one process on NumPy ends with all ranks' examples."""
    rng = np.random.RandomState(7)
    x = rng.randn(5, 4 * comm.size, 1, 8, 8).astype("f")
    t = rng.randint(0, 5, (5, 4 * comm.size)).astype("i")
    alone, spread = Small(), Small()
    plain = chainer.optimizers.MomentumSGD(lr=0.1).setup(alone)
    spread.to_device("@cupy:0")
    ours = nbmn.create_multi_node_optimizer(chainer.optimizers.MomentumSGD(lr=0.1), comm)
    ours.setup(spread)
    mine = slice(4 * comm.rank, 4 * comm.rank + 4)
    for step in range(5):
        plain.update(alone, x[step], t[step])
        ours.update(spread, put(x[step, mine]), put(t[step, mine]))
    for (name, expected), (_, got) in zip(
        sorted(alone.namedparams()), sorted(spread.namedparams()), strict=True
    ):
        same(got.array, expected.array, 1e-4, f"training: {name}", kernels=True)
    if not STANDIN:
        values = comm.allgather_obj(
            [param.array.get() for _, param in sorted(spread.namedparams())]
        )
        for value, of in zip(values[-1], values[0], strict=True):
            close(value, of, 0.0, "values of the last rank and the first")


def speed(comm, report: Report) -> None:
    """How long the way through host memory takes, for about as much as ResNet-50 has."""
    model, _ = model_of(comm.rank, comm.size, shapes=LARGE[: 3 if STANDIN else None])
    ways = {"averaging": comm.multi_node_mean_grad, "broadcast of values": comm.bcast_data}
    for name, way in ways.items():
        times = []
        for _ in range(7):
            comm.barrier()
            cupy.cuda.Device().synchronize()
            began = time.perf_counter()
            way(model)
            cupy.cuda.Device().synchronize()
            times.append(time.perf_counter() - began)
        report(
            f"staged {name}",
            ranks=comm.size,
            megabytes=sum(p.grad.nbytes for p in model.params()) / 1e6,
            milliseconds=1e3 * statistics.median(times),
        )
