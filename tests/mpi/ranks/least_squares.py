"""A small model under double buffering, and what it must come to, in NumPy."""

import chainer
import chainer.functions as F
import numpy as np

import nbmn

RNG = np.random.RandomState(3)
X = RNG.randn(12, 5)
Y = RNG.randn(12, 2)
W, B = RNG.randn(2, 5), RNG.randn(2)
BACKENDS = ["auto", "dummy", "flat", "hierarchical", "naive", "shared_memory", "two_dimensional"]


class Model(chainer.Chain):
    """Least squares, in float64; what happens in its forward can be added to."""

    def __init__(self, seed=0, during=lambda: None):
        super().__init__()
        rng = np.random.RandomState(seed)
        w, b = (rng.randn(2, 5), rng.randn(2)) if seed else (W, B)
        with self.init_scope():
            self.w = chainer.Parameter(w.copy())
            self.b = chainer.Parameter(b.copy())
        self.during = during

    def forward(self, x, y):
        self.during()
        return F.sum((F.linear(x, self.w, self.b) - y) ** 2) / 2


def batch(step, rank, size):
    """Return the rows of one rank in one step."""
    rows = np.random.RandomState(step).permutation(12)[: 12 // size * size]
    return np.split(rows, size)[rank]


def gradient(w, b, rows):
    residual = X[rows] @ w.T + b - Y[rows]
    return residual.T @ X[rows], residual.sum(0)


class Delayed:
    """The same in NumPy: momentum SGD that applies each mean one update later."""

    def __init__(self, size, lr=0.01, momentum=0.9, decay=0.0):
        self.size, self.lr, self.momentum, self.decay = size, lr, momentum, decay
        self.w, self.b = W.copy(), B.copy()
        self.v = [np.zeros_like(W), np.zeros_like(B)]
        self.pending = None
        self.t = 0

    def mean(self, step):
        parts = [gradient(self.w, self.b, batch(step, r, self.size)) for r in range(self.size)]
        return [sum(grads) / self.size for grads in zip(*parts, strict=True)]

    def update(self, step):
        fresh = self.mean(step)
        self.flush()
        self.pending = fresh

    def flush(self):
        if self.pending is not None:
            for values, v, g in zip((self.w, self.b), self.v, self.pending, strict=True):
                v *= self.momentum
                v -= self.lr * (g + self.decay * values)
                values += v
            self.pending = None
            self.t += 1


def make(comm, model=None, actual=None, **options):
    model = Model(comm.rank) if model is None else model
    actual = chainer.optimizers.MomentumSGD(0.01) if actual is None else actual
    options = {"double_buffering": True, **options}
    return nbmn.create_multi_node_optimizer(actual, comm, **options).setup(model)


def step_of(comm, optimizer, step):
    rows = batch(step, comm.rank, comm.size)
    optimizer.update(optimizer.target, X[rows], Y[rows])


def assert_equal(optimizer, right, rtol=1e-9):
    np.testing.assert_allclose(optimizer.target.w.array, right.w, rtol=rtol)
    np.testing.assert_allclose(optimizer.target.b.array, right.b, rtol=rtol)
    assert optimizer.t == right.t


def alike(comm, optimizer):
    everyone = comm.allgather(optimizer.target.w.array)
    return all((theirs == everyone[0]).all() for theirs in everyone)


def adam(comm):
    return make(comm, Model(0), chainer.optimizers.Adam(0.01))
