"""Numbers given as numpy.float64 leave float32 arrays as they are."""

import numpy as np
import pytest

chainer = pytest.importorskip("chainer")
F = chainer.functions

WIDE = np.float64(0.5)


def x(*shape):
    return chainer.Variable(np.random.RandomState(0).rand(*shape).astype("f"))


CALLS = {
    "clip": lambda n: F.clip(x(2, 3), n, n + 1),
    "huber_loss": lambda n: F.huber_loss(x(2, 3), x(2, 3) * 3, n),
    "layer_normalization": lambda n: F.layer_normalization(x(2, 3), x(3), x(3), n),
    "local_response_normalization": lambda n: F.local_response_normalization(
        x(1, 6, 2, 2), k=n, alpha=n, beta=n
    ),
    "fixed_batch_normalization": lambda n: F.fixed_batch_normalization(
        x(4, 3), x(3), x(3), x(3), x(3), n
    ),
    "batch_renormalization": lambda n: F.batch_renormalization(
        x(4, 3), x(3), x(3), n + 1, n, n, running_mean=x(3).array, running_var=x(3).array
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_float64_is_as_good_as_a_float(name):
    call = CALLS[name]
    got, want = call(WIDE), call(0.5)
    assert got.dtype == want.dtype == np.float32
    np.testing.assert_array_equal(got.array, want.array)
    F.sum(got * got).backward()
