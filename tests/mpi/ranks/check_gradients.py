import chainer
import chainer.functions as F
import ml_dtypes
import numpy as np
from rank_tools import need_ranks, raises

import nbmn
from nbmn.communicators import MismatchError

SHAPES = {"a": (7, 1, 3), "b": (1,), "c": (5, 3), "d": (), "e": (0, 2)}
MIXED = {"a": "f2", "b": "f4", "c": "f8", "d": "f2", "e": "f4"}


def build(dtypes, seed=0, names=tuple(SHAPES)):
    rng = np.random.RandomState(seed)
    model = chainer.Link()
    with model.init_scope():
        for name in names:
            dtype = dtypes[name] if isinstance(dtypes, dict) else dtypes
            setattr(
                model,
                name,
                chainer.Parameter(
                    rng.randn(*SHAPES[name]).astype(dtype)
                    if SHAPES[name]
                    else np.array(rng.randn(), dtype)
                ),
            )
    return model


def fill(model, rank, skip=()):
    rng = np.random.RandomState(100 + rank)
    model.cleargrads()
    for name, param in sorted(model.namedparams()):
        grad = np.asarray(rng.randn(*param.shape)).astype(param.dtype)
        if name[1:] not in skip:
            param.grad = grad
    return {name[1:]: p.grad for name, p in model.namedparams()}


def expected_mean(by_rank, name, shape, dtype):
    wide = np.float64 if dtype == np.float64 else np.float32
    total = sum(
        (np.zeros(shape, wide) if g[name] is None else g[name].astype(wide) for g in by_rank),
        np.zeros(shape, wide),
    )
    return (total / wide(len(by_rank))).astype(dtype)


def means_of(comm, dtypes, skip_on, zero_fill):
    """Average grads that skip ``skip_on[rank]``; compare with the mean computed here."""
    by_rank = []
    for rank in range(comm.size):
        grads = fill(build(dtypes), rank, skip_on.get(rank, ()))
        by_rank.append({k: None if g is None else g.copy() for k, g in grads.items()})
    model = build(dtypes)
    fill(model, comm.rank, skip_on.get(comm.rank, ()))
    comm.multi_node_mean_grad(model, zero_fill)
    for name, shape in SHAPES.items():
        param = getattr(model, name)
        if all(g[name] is None for g in by_rank) and not zero_fill:
            assert param.grad is None
            continue
        expected = expected_mean(by_rank, name, shape, param.dtype)
        assert param.grad.dtype == param.dtype
        assert param.grad.shape == shape
        tight = 1e-12 if param.dtype == np.float64 else 2e-3 if param.dtype == np.float16 else 1e-6
        np.testing.assert_allclose(param.grad, expected, rtol=tight, atol=tight)


def check_means_by_dtype(comm):
    for dtype in [np.float16, np.float32, np.float64]:
        means_of(comm, dtype, {}, False)
    means_of(comm, MIXED, {}, False)


def check_gradient_missing_on_some_ranks(comm):
    for zero_fill in [False, True]:
        means_of(comm, np.float32, {0: ("a",)}, zero_fill)
        means_of(comm, np.float32, {comm.size - 1: ("a", "c", "d")}, zero_fill)
        means_of(comm, np.float32, dict.fromkeys(range(comm.size), ("b", "d")), zero_fill)
        means_of(comm, np.float16, {0: tuple(SHAPES)}, zero_fill)  # an empty rank
        means_of(comm, np.float32, {r: tuple(SHAPES) for r in range(comm.size)}, zero_fill)


def network(dtype):
    def normal(seed):
        return chainer.initializers.Normal(0.5, dtype=dtype, rng=np.random.RandomState(seed))

    with chainer.using_config("dtype", dtype):
        return chainer.Sequential(
            chainer.links.Linear(5, 7, initialW=normal(1)),
            F.tanh,
            chainer.links.Linear(7, 1, initialW=normal(2)),
        )


def summed_loss(net, x, scale):
    return F.sum(net(x) ** 2) * scale


def check_equals_gradient_of_the_concatenated_batch(comm):
    sizes = [4, 6, 0][: comm.size]  # unequal, and with 3 ranks one is empty
    data = np.random.RandomState(0).randn(sum(sizes), 5)
    for dtype, tolerance in [(np.float16, 2e-2), (np.float32, 1e-5), (np.float64, 1e-12)]:
        alone = network(dtype)
        alone.cleargrads()
        summed_loss(alone, data.astype(dtype), 1 / sum(sizes)).backward()
        begin = sum(sizes[: comm.rank])
        mine = data[begin : begin + sizes[comm.rank]]
        net = network(dtype)
        net.cleargrads()
        if len(mine):
            summed_loss(net, mine.astype(dtype), comm.size / sum(sizes)).backward()
        comm.multi_node_mean_grad(net, zero_fill=True)
        for (_, a), (_, b) in zip(
            sorted(alone.namedparams()), sorted(net.namedparams()), strict=True
        ):
            np.testing.assert_allclose(b.grad, a.grad, rtol=tolerance, atol=tolerance)


def check_large_float16_gradients_do_not_overflow(comm):
    model = build(np.float16, names=("c",))
    model.c.grad = np.full((5, 3), 60000, np.float16)
    comm.multi_node_mean_grad(model)
    np.testing.assert_array_equal(model.c.grad, np.float16(60000))


def check_gradients_that_share_memory(comm):
    model = build(np.float32, names=("a", "c"))
    with model.init_scope():
        model.c2 = chainer.Parameter(np.zeros((5, 3), np.float32))
    model.cleargrads()
    model.a.grad = np.broadcast_to(np.float32(comm.rank), (7, 1, 3))  # read-only
    shared = np.full((5, 3), comm.rank, np.float32)
    model.c.grad = shared
    # Shared on rank 0 only: the means differ.
    model.c2.grad = shared if comm.rank == 0 else np.full((5, 3), 10, np.float32)
    comm.multi_node_mean_grad(model)
    np.testing.assert_allclose(model.a.grad, (comm.size - 1) / 2)
    np.testing.assert_allclose(model.c.grad, (comm.size - 1) / 2)
    np.testing.assert_allclose(model.c2.grad, 10 * (comm.size - 1) / comm.size, rtol=1e-6)


def check_models_that_do_not_fit_are_an_error_on_all(comm):
    need_ranks(comm, 2)
    model = build(np.float32, names=("a", "b") if comm.rank == 0 else ("a", "c"))
    fill(model, 0)
    with raises(MismatchError, "rank 1", "/b, /c"):
        comm.multi_node_mean_grad(model)
    with raises(MismatchError, "/b, /c"):
        comm.bcast_data(model)
    model = build(np.float32 if comm.rank == 0 else np.float64)
    with raises(MismatchError, "float32", "float64"):
        comm.bcast_data(model)
    lazy = chainer.links.Linear(None, 3)
    if comm.rank == 1:
        lazy.W.initialize((3, 4))
    with raises(MismatchError, "/W", "bcast_data"):
        comm.multi_node_mean_grad(lazy)
    comm.barrier()


def check_integers_have_no_gradients(comm):
    model = chainer.Link()
    with model.init_scope():
        model.count = chainer.Parameter(np.array([5, 7]))
        model.mask = chainer.Parameter(np.array([True, False]))
        model.w = chainer.Parameter(np.ones(2, "f4"))
    comm.multi_node_mean_grad(model, zero_fill=True)
    assert model.count.grad is None
    assert model.mask.grad is None
    np.testing.assert_array_equal(model.w.grad, np.zeros(2, "f4"))
    if comm.rank == comm.size - 1:
        model.count.grad = np.array([2, 4])
    with raises(TypeError, "int64"):  # rather than a mean that is cut to zeros
        comm.multi_node_mean_grad(model)


def check_bcast_data(comm):
    for dtype in [np.float16, np.float32, np.float64]:
        model = build(dtype, seed=comm.rank)
        arrays = {name: p.array for name, p in model.namedparams()}
        comm.bcast_data(model)
        for (name, got), (_, right) in zip(
            sorted(model.namedparams()), sorted(build(dtype, seed=0).namedparams()), strict=True
        ):
            np.testing.assert_array_equal(got.array, right.array)
            assert got.array is arrays[name]  # in place
    mixed = build(MIXED, seed=comm.rank)
    comm.broadcast_data(mixed)
    assert mixed.a.array.dtype == np.float16
    np.testing.assert_array_equal(mixed.c.array, build("f8", 0).c.array)


def check_bcast_data_initialises(comm):
    lazy = chainer.Chain(a=chainer.links.Linear(None, 3), b=chainer.links.Linear(None, 2))
    if comm.rank == 0:
        lazy.a.W.initialize((3, 4))
    if comm.rank == comm.size - 1:
        lazy.b.W.initialize((2, 5))
    comm.bcast_data(lazy)
    assert lazy.a.W.shape == (3, 4)
    for name in "ab":
        everyone = comm.allgather_obj(getattr(lazy, name).W.array)
        for theirs in everyone:
            np.testing.assert_array_equal(theirs, everyone[0])


def check_numbers_that_overflow_are_no_error(comm):
    """Not even where NumPy is told to raise: that would be on one rank, and others would wait."""
    extremes = np.array([np.inf, -np.inf, np.nan, 3e38, 1e-45, 1e5, 1, 2], np.float32)
    with np.errstate(all="ignore"):
        by_rank = np.array([np.roll(extremes, rank) for rank in range(comm.size)])
    for name in ("naive", "flat", "shared_memory", "auto"):
        for wire in (None, "float16"):
            made = nbmn.create_communicator(name, allreduce_grad_dtype=wire)
            made.timeout = comm.timeout
            with np.errstate(all="ignore"):
                given = by_rank if wire is None else by_rank.astype(wire).astype(np.float32)
                total = given[0]
                for row in given[1:]:
                    total = total + row
                right = total / np.float32(comm.size)
            for size in (8, 40_000, 160_000):
                model = chainer.Link()
                with model.init_scope():
                    model.p = chainer.Parameter(np.zeros(size, np.float32))
                for _ in range(3):
                    model.p.grad = np.tile(by_rank[comm.rank], size // 8)
                    with np.errstate(all="raise"):
                        made.multi_node_mean_grad(model)
                    for at in (0, size - 8):
                        np.testing.assert_allclose(model.p.grad[at : at + 8], right, 1e-6)
    with np.errstate(all="raise"):
        summed = comm.allreduce(by_rank[comm.rank])
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(summed, sum(by_rank[1:], by_rank[0]), 1e-6)


def check_bfloat16_is_refused_with_what_to_do(comm):
    model = build("f4")
    fill(model, comm.rank)
    comm.set_config("allreduce_grad_dtype", "bfloat16")
    try:
        with raises(ValueError, "host memory", "comm.set_config('allreduce_grad_dtype'"):
            comm.multi_node_mean_grad(model)
    finally:
        comm.set_config("allreduce_grad_dtype", None)
    values = np.ones(3, ml_dtypes.bfloat16)
    with raises(TypeError, "dtype bfloat16 cannot be summed", "convert them to float32"):
        comm.allreduce(values)
    model = chainer.Link()
    with model.init_scope():
        model.p = chainer.Parameter(values)
    with raises(TypeError, "/p is of dtype bfloat16", "use float16, float32"):
        comm.bcast_data(model)
    model.p.grad = values
    with raises(TypeError, "cannot be averaged: use float16, float32"):
        comm.multi_node_mean_grad(model)
