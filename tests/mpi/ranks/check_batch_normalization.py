"""Batch normalization over ranks, against Chainer's own of all examples in one process."""

import chainer
import numpy as np
from chainer import Variable
from chainer import functions as F
from chainer import links as L
from rank_tools import need_ranks, raises

import nbmn
from nbmn import links
from nbmn.communicators import world


def batches(comm, sizes, dtype="float32", shape=(3, 4), offset=0.0):
    """Every rank's batch and output gradient: made alike on all ranks."""
    rng = np.random.default_rng(5)
    total = (sum(sizes), *shape)
    scale = np.arange(1, shape[0] + 1).reshape(-1, *(1 for _ in shape[1:]))
    x = (rng.standard_normal(total) * scale + offset * scale).astype(dtype)
    gy = rng.standard_normal(total).astype(dtype)
    begin = sum(sizes[: comm.rank])
    return x, gy, slice(begin, begin + sizes[comm.rank])


def passed(link, x, gy, **kwargs):
    """Outputs, gradients and running statistics of one step."""
    x = Variable(x)
    link.cleargrads()
    y = link(x, **kwargs)
    y.grad = gy
    y.backward()
    return y.array, x.grad, link.gamma.grad, link.beta.grad, link.avg_mean, link.avg_var


def compare(comm, sizes, rtol=2e-5, shape=(3, 4), dtype="float32", offset=0.0, **options):
    """Whether all ranks get what a single one does of all examples."""
    channels = options.pop("channels", shape[0])
    calls = options.pop("calls", [{}])
    one = L.BatchNormalization(channels, **options)
    many = links.MultiNodeBatchNormalization(channels, comm, **options)
    for link in (one, many):
        link.gamma.array[...] = np.random.default_rng(1).uniform(0.5, 2, link.gamma.shape)
        link.beta.array[...] = np.random.default_rng(2).uniform(-1, 1, link.gamma.shape)
    for kwargs in calls:
        x, gy, mine = batches(comm, sizes, dtype, shape, offset)
        y, gx, ggamma, gbeta, *running = passed(one, x, gy, **kwargs)
        found = passed(many, x[mine], gy[mine], **kwargs)
        # Each rank has the mean over ranks: a further mean leaves it as it is.
        right = [y[mine], gx[mine], ggamma / comm.size, gbeta / comm.size, *running]
        for got, expected in zip(found, right, strict=True):
            assert got.dtype == expected.dtype
            np.testing.assert_allclose(got, expected, rtol=rtol, atol=rtol * 5)
        assert many.N == one.N


def check_plain_batch_normalization_is_another(comm):
    need_ranks(comm, 2)
    x, gy, mine = batches(comm, [4] * comm.size)
    whole = passed(L.BatchNormalization(3), x, gy)
    own = passed(L.BatchNormalization(3), x[mine], gy[mine])
    for other, right in zip(own[:2], whole[:2], strict=True):
        assert np.abs(other - right[mine]).max() > 0.1
    gradients = [comm.allreduce(g) / comm.size for g in own[2:4]]
    assert np.abs(gradients[0] - whole[2] / comm.size).max() > 0.01
    for other, right in zip(own[4:], whole[4:], strict=True):
        assert np.abs(other - right).max() > 0.01


def check_batch_normalization_is_that_of_all_examples(comm):
    compare(comm, [4] * comm.size)
    compare(comm, [4] * comm.size, calls=[{}, {}, {}], decay=0.7, eps=1e-2)
    compare(comm, [3] * comm.size, shape=(2,))
    compare(comm, [3] * comm.size, shape=(2, 3, 2))
    compare(comm, [3] * comm.size, shape=(2, 3, 2), channels=(2, 3))
    compare(comm, [4] * comm.size, calls=[{"finetune": True}] * 3)


def check_batches_of_different_lengths(comm):
    compare(comm, [1 + 3 * rank for rank in range(comm.size)])
    compare(comm, [5 if rank else 0 for rank in range(comm.size)] if comm.size > 1 else [5])
    compare(comm, [0] * (comm.size - 1) + [5])


def check_batch_normalization_in_other_dtypes(comm):
    with chainer.using_config("dtype", np.float64):
        compare(comm, [4] * comm.size, dtype="float64", rtol=1e-10)
    compare(comm, [4] * comm.size, dtype="float16", rtol=2e-3)


def check_statistics_of_values_far_from_zero(comm):
    # Where the mean of squares in float32 would be off by more than the variance.
    compare(comm, [50] * comm.size, offset=3000.0, rtol=2e-3)


def check_float16_sums_in_float32(comm):
    """300 is not too large for float16; its square is."""
    with chainer.using_config("dtype", np.float16):
        link = links.MultiNodeBatchNormalization(1, comm)
    x = np.array([[300], [-300]] * 50, np.float16)
    y = link(x)
    assert y.dtype == np.float16
    np.testing.assert_allclose(y.array, np.sign(x), rtol=1e-3)


def check_no_examples_anywhere(comm):
    link = links.MultiNodeBatchNormalization(3, comm)
    link.cleargrads()
    y = link(np.empty((0, 3), np.float32))
    y.grad = y.array
    y.backward()
    assert y.shape == (0, 3)
    np.testing.assert_array_equal(link.avg_var, np.ones(3))
    np.testing.assert_array_equal(link.gamma.grad, np.zeros(3))


def check_test_mode_is_local(comm):
    link = links.MultiNodeBatchNormalization(3, comm)
    link(np.full((2, 3), comm.rank, np.float32))
    begun = comm._link.sequence
    own = L.BatchNormalization(3)
    own.copyparams(link)
    own.avg_mean, own.avg_var = link.avg_mean, link.avg_var
    x = np.random.default_rng(0).standard_normal((4, 3)).astype("f")
    with chainer.using_config("train", False):
        np.testing.assert_array_equal(link(x).array, own(x).array)
    assert comm._link.sequence == begun


def check_without_gamma_and_beta_and_with_axis(comm):
    x, gy, mine = batches(comm, [4] * comm.size, shape=(3, 2))
    one = L.BatchNormalization(axis=(0, 1), use_gamma=False, use_beta=False)
    many = links.MultiNodeBatchNormalization(
        None, comm, use_gamma=False, use_beta=False, axis=(0, 1)
    )
    a, b = Variable(x), Variable(x[mine])
    y, z = one(a), many(b)
    y.grad, z.grad = gy, gy[mine]
    y.backward()
    z.backward()
    np.testing.assert_allclose(z.array, y.array[mine], atol=1e-5)
    np.testing.assert_allclose(b.grad, a.grad[mine], atol=1e-5)
    np.testing.assert_allclose(many.avg_mean, one.avg_mean, atol=1e-6)
    assert many.avg_mean.shape == (2,)


def check_batch_normalization_twice(comm):
    """A penalty on the gradient, as some GANs have it."""
    sizes = [3 + rank for rank in range(comm.size)]
    x, _, mine = batches(comm, sizes, "float64", (2,))
    with chainer.using_config("dtype", np.float64):
        one = L.BatchNormalization(2)
        many = links.MultiNodeBatchNormalization(2, comm)
    found = []
    for link, array in ((one, x), (many, x[mine])):
        v = Variable(array)
        (gx,) = chainer.grad([F.sum(link(v) ** 3)], [v], enable_double_backprop=True)
        link.cleargrads()
        v.cleargrad()
        F.sum(gx**2).backward()
        found.append((gx.array, v.grad, link.gamma.grad))
    (gx, ggx, ggamma), (mx, mmx, mgamma) = found
    np.testing.assert_allclose(mx, gx[mine], rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(mmx, ggx[mine], rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(comm.allreduce(mgamma), ggamma, rtol=1e-8)


def check_one_collective_each_way(comm):
    link = links.MultiNodeBatchNormalization(3, comm)
    link.cleargrads()
    before = world().recorder.last().number
    y = link(np.ones((2, 3), np.float32))
    assert world().recorder.last().number == before + 1
    F.sum(y).backward()
    assert world().recorder.last().number == before + 2


def check_input_that_does_not_fit_is_an_error_on_all(comm):
    link = links.MultiNodeBatchNormalization(3, comm)
    bad = comm.rank == comm.size - 1
    for wrong in (np.ones((2, 4), "f"), np.ones((2, 3), "i"), "text"):
        with raises((TypeError, ValueError), f"rank {comm.size - 1}"):
            link(wrong if bad else np.ones((2, 3), "f"))
    link = links.MultiNodeBatchNormalization(None, comm, axis=(0, 2))
    with raises(ValueError, f"rank {comm.size - 1}", "axes"):
        link(np.ones((2,) if bad else (2, 3, 4), "f"))
    assert comm.broken is None


def check_mnbn_model_trains_like_one_process(comm):
    need_ranks(comm, 2)
    net = chainer.Sequential(
        L.Linear(4, 5, initialW=chainer.initializers.HeNormal(rng=np.random.RandomState(0))),
        L.BatchNormalization(5),
        F.relu,
        L.Linear(5, 3, initialW=chainer.initializers.HeNormal(rng=np.random.RandomState(1))),
    )
    model = links.create_mnbn_model(net, comm)
    one = chainer.optimizers.MomentumSGD(0.1).setup(net)
    many = nbmn.create_multi_node_optimizer(chainer.optimizers.MomentumSGD(0.1), comm).setup(model)
    for step in range(3):
        rng = np.random.default_rng(step)
        x = rng.standard_normal((4 * comm.size, 4)).astype("f")
        t = rng.integers(0, 3, 4 * comm.size).astype("i")
        mine = slice(4 * comm.rank, 4 * comm.rank + 4)
        one.update(lambda x, t: F.softmax_cross_entropy(net(x), t), x, t)
        many.update(lambda x, t: F.softmax_cross_entropy(model(x), t), x[mine], t[mine])
    for (name, right), (_, found) in zip(
        sorted(net.namedparams()), sorted(model.namedparams()), strict=True
    ):
        np.testing.assert_allclose(found.array, right.array, atol=2e-5, err_msg=name)
    np.testing.assert_allclose(model[1].avg_var, net[1].avg_var, rtol=1e-4)
