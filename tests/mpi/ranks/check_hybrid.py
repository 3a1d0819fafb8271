"""A part of the model on rank 0, the other on all others, which average its gradients."""

import warnings

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
from rank_tools import need_ranks

import nbmn

X = np.random.RandomState(1).randn(2, 4, 3).astype(np.float32)
"""Inputs of two steps."""
LR = 0.1


class Second(chainer.Chain):
    """Takes its shape from what comes, as in ChainerMN's example of both parallelisms."""

    def __init__(self, rank):
        super().__init__()
        with self.init_scope():
            self.l = L.Linear(None, 2, nobias=True, initialW=start(rank))

    def forward(self, h):
        return F.sum(self.l(h) * weights(len(h)))


def start(rank):
    return np.random.RandomState(10 + rank).randn(2, 5).astype(np.float32)


def weights(n):
    """What the loss weighs the outputs by: other weights on each rank."""
    rank = nbmn.communicators.world().rank
    return rank * np.arange(1, 2 * n + 1, dtype=np.float32).reshape(n, 2)


def train(comm, **options):
    group = comm.split(min(comm.rank, 1), comm.rank)
    model = nbmn.MultiNodeChainList(comm)
    if comm.rank == 0:
        first = L.Linear(3, 5, nobias=True, initialW=np.ones((5, 3), np.float32))
        model.add_link(first, rank_in=None, rank_out=list(range(1, comm.size)))
    else:
        model.add_link(Second(comm.rank), rank_in=0, rank_out=None)
    optimizer = nbmn.create_multi_node_optimizer(chainer.optimizers.SGD(LR), group, **options)
    optimizer.setup(model)
    for x in X:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            optimizer.update(model, *([x] if comm.rank == 0 else []))
        told = [str(w.message) for w in caught if "do not count" in str(w.message)]
        yield model, told
    if options:
        optimizer.flush()


def expected(size):
    """The weights after each step: in the first one only rank 1's gradient counts."""
    first, second = np.ones((5, 3), np.float32), {rank: start(rank) for rank in range(1, size)}
    for step, x in enumerate(X):
        h = x @ first.T
        t = {rank: rank * np.arange(1, 9, dtype=np.float32).reshape(4, 2) for rank in second}
        back = sum(t[rank] @ second[rank] for rank in second)
        mean = np.mean([t[rank].T @ h for rank in ([1] if step == 0 else second)], axis=0)
        first = first - LR * back.T @ x
        second = dict.fromkeys(second, second[1] - LR * mean)
        yield first, second[1]


def check_lazy_part_whose_ranks_cannot_repeat_a_step(comm):
    need_ranks(comm, 2)
    for step, ((model, told), right) in enumerate(
        zip(train(comm), expected(comm.size), strict=True)
    ):
        (W,) = (param.array for param in model.params())
        np.testing.assert_allclose(W, right[min(comm.rank, 1)], rtol=1e-4)
        assert len(told) == (comm.rank == 1 and comm.size > 2 and step == 0)
        assert all("talks to ranks" in text for text in told)


def check_lazy_part_with_double_buffering(comm):
    need_ranks(comm, 2)
    *_, (model, _) = train(comm, double_buffering=True)
    everyone = comm.allgather_obj([param.array for param in model.params()])
    for theirs in everyone[2:]:
        np.testing.assert_array_equal(theirs, everyone[1])
    h = X[0] @ np.ones((3, 5), np.float32)
    if comm.size == 2:  # all steps count, and each was computed before the first was applied
        h = h + X[1] @ np.ones((3, 5), np.float32)
        right = start(1) - LR * np.arange(1, 9, dtype=np.float32).reshape(4, 2).T @ h
        np.testing.assert_allclose(everyone[1][0], right, rtol=1e-4)
