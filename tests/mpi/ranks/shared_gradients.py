"""What the checks of gradients in shared memory need: a backend, models, and their means."""

import chainer
import numpy as np

from nbmn.communicators import models, world
from nbmn.communicators.window import SharedMemoryBackend

# Small and large ones, the shards' borders within and between them.
SMALL_SHAPES = [(3,), (64, 70), (), (300, 30), (0, 4), (129, 65), (5,)]
SHAPES = [(3,), (64, 700), (1,), (300, 1000), (), (129, 65), (0, 4), (1111, 77), (5,)]


def open_link():
    return world().open_link(None, None)[0]


def opened(comm, **options):
    link = open_link()
    link.timeout = comm.timeout
    return link, SharedMemoryBackend(link, **options)


def build(dtypes=("f4",), shapes=SHAPES):
    model = chainer.Link()
    with model.init_scope():
        for n, shape in enumerate(shapes):
            array = np.zeros(shape, dtypes[n % len(dtypes)])
            setattr(model, f"p{n}", chainer.Parameter(array))
    return model


def values(param, rank, step, n):
    rng = np.random.RandomState([rank, step, n])
    return np.asarray(rng.randn(*param.shape)).astype(param.dtype)


def parameters(model):
    return [param for _, param in sorted(model.namedparams())]


def fill(model, rank, step):
    model.cleargrads()
    for n, param in enumerate(parameters(model)):
        param.grad = values(param, rank, step, n)


def expect_means(model, size, step, *, exact=True):
    """Require the means of what ``fill`` gave, added in rank order."""
    for n, param in enumerate(parameters(model)):
        wide = np.promote_types(param.dtype, np.float32)
        by_rank = [values(param, rank, step, n).astype(wide) for rank in range(size)]
        expected = (sum(by_rank) / wide.type(size)).astype(param.dtype)
        tight = 0 if exact else {2: 2e-3, 4: 1e-5, 8: 1e-12}[param.dtype.itemsize]
        assert param.grad.shape == param.shape
        assert param.grad.dtype == param.dtype
        np.testing.assert_allclose(param.grad, expected, rtol=tight, atol=tight)


def average(link, backend, model, **terms):
    gradients = models.collect(model, False)
    return models.average(link, backend, gradients, models.Terms(False, **terms))


def step(comm, link, backend, model, number, *, exact=True):
    fill(model, comm.rank, number)
    average(link, backend, model)
    expect_means(model, comm.size, number, exact=exact)


def by(comm, way):
    """Return a link and a backend that averages in one way only."""
    link, backend = opened(comm)
    backend._ways = lambda _: (way,)
    return link, backend


def alike_on_all(comm, model):
    mine = [param.grad.tobytes() for param in parameters(model)]
    for theirs in comm.allgather_obj(mine):
        assert theirs == mine
