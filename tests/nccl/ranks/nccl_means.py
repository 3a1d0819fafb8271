"""Means and sums over NCCL are right, whatever their dtypes and whoever has them."""

import chainer
import ml_dtypes
import numpy as np
from host_runtime import DeviceArray, on_device
from nccl_tools import (
    assert_means,
    model_on_device,
    nccl_of,
    on_gpus,
    params,
    standin,
)
from rank_tools import need_ranks, raises

from nbmn.communicators import MismatchError

REALS = ["float16", "float32", "float64"]
HALVES = {"float16": 2e-3, "bfloat16": 2e-2}


def check_means_of_every_dtype(comm):
    nccl = on_gpus()
    before = standin().operations()
    for seed, dtype in enumerate(REALS):
        model, means = model_on_device(nccl, dtype, seed)
        nccl.multi_node_mean_grad(model)
        assert_means(model, means, {"float16": 1e-3, "float64": 1e-14}.get(dtype, 1e-6))
        assert all(isinstance(param.grad, DeviceArray) for param in params(model))
    assert standin().operations() - before == len(REALS)
    assert nccl.name == "pure_nccl"


def check_means_of_several_dtypes_at_once(comm):
    nccl = on_gpus()
    model, means = model_on_device(nccl, "float32", 1)
    other, others = model_on_device(nccl, "float64", 2)
    before = standin().operations()
    nccl.multi_node_mean_grad(chainer.Sequential(model, other))
    assert standin().operations() - before == 2
    assert_means(model, means)
    assert_means(other, others, 1e-14)


def check_large_ones(comm):
    nccl = on_gpus()
    model, means = model_on_device(nccl, "float32", 3, shapes=((1000, 700), (3,), (300_001,)))
    nccl.multi_node_mean_grad(model)
    assert_means(model, means)


def check_complex_means(comm):
    nccl = on_gpus()
    model, _ = model_on_device(nccl, "complex64", 4, shapes=((2, 3),))
    model.p0.grad = on_device(np.full((2, 3), 1 + nccl.rank * 1j), "complex64")
    nccl.multi_node_mean_grad(model)
    expected = 1 + 0.5j * (nccl.size - 1)
    np.testing.assert_allclose(np.asarray(model.p0.grad), np.full((2, 3), expected), rtol=1e-6)


def check_wire_dtypes(comm):
    for wire in ["float16", "bfloat16", "float32"]:
        nccl = on_gpus()
        nccl.set_config("allreduce_grad_dtype", wire)
        assert nccl.get_config("allreduce_grad_dtype").name == wire
        for dtype in ["float32", "float64"]:
            model, means = model_on_device(nccl, dtype, 5)
            nccl.multi_node_mean_grad(model)
            assert_means(model, means, HALVES.get(wire, 1e-6))
            exact = any(
                np.array_equal(np.asarray(param.grad), mean)
                for param, mean in zip(params(model), means, strict=True)
            )
            assert not exact or wire == "float32" or nccl.size == 1


def check_what_is_rounded_to_a_wire_dtype_is_rounded_once(comm):
    nccl = on_gpus()
    nccl.set_config("allreduce_grad_dtype", "bfloat16")
    model, _ = model_on_device(nccl, "float32", shapes=((4,),))
    values = np.array([1.0, 1 + 2**-9, 3.3, -1e30], np.float32)
    model.p0.grad = on_device(values)
    nccl.multi_node_mean_grad(model)
    # All ranks have the same, so that their mean is what one of them was rounded to, divided and
    # added again: exactly, where their number is a power of 2.
    rounded = values.astype(ml_dtypes.bfloat16).astype(np.float32)
    tolerance = 0 if nccl.size & (nccl.size - 1) == 0 else 2**-7
    np.testing.assert_allclose(np.asarray(model.p0.grad), rounded, rtol=tolerance)


def check_sums_of_halves_do_not_overflow(comm):
    nccl = on_gpus()
    nccl.set_config("allreduce_grad_dtype", "float16")
    model, _ = model_on_device(nccl, "float32", shapes=((2,),))
    model.p0.grad = on_device([60000.0, -60000.0], "float32")
    nccl.multi_node_mean_grad(model)
    np.testing.assert_allclose(np.asarray(model.p0.grad), [60000.0, -60000.0], rtol=1e-3)


def check_gradients_that_some_ranks_have_not(comm):
    nccl = on_gpus()
    last = nccl.size - 1
    model, means = model_on_device(
        nccl, "float32", 6, missing=lambda rank, number: (rank, number) in {(0, 0), (last, 1)}
    )
    nccl.multi_node_mean_grad(model)
    assert_means(model, means)
    model, means = model_on_device(nccl, "float32", 7, missing=lambda rank, number: number == 1)
    nccl.multi_node_mean_grad(model)
    assert_means(model, means)
    assert model.p1.grad is None
    model, means = model_on_device(nccl, "float32", 8, missing=lambda rank, number: number == 1)
    nccl.multi_node_mean_grad(model, zero_fill=True)
    np.testing.assert_array_equal(np.asarray(model.p1.grad), np.zeros(7))
    model, means = model_on_device(nccl, "float32", 9, missing=lambda *_: True)
    nccl.multi_node_mean_grad(model)
    assert all(param.grad is None for param in params(model))


def check_means_are_views_that_stay_valid(comm):
    nccl = on_gpus()
    kept = []
    for seed in range(6):
        model, means = model_on_device(nccl, "float32", seed)
        nccl.multi_node_mean_grad(model)
        kept.append((model, means))
        first, second = params(model)[:2]
        assert first.grad.base is not None
        assert not np.shares_memory(first.grad, second.grad)
        assert first.grad.flags.c_contiguous
    for model, means in kept:
        assert_means(model, means)


def check_gradients_that_share_memory(comm):
    nccl = on_gpus()
    model, means = model_on_device(nccl, "float32", 10, shapes=((4,), (4,)))
    model.p1.grad = model.p0.grad
    nccl.multi_node_mean_grad(model)
    assert_means(model, [means[0], means[0]])
    model.p0.grad[...] = 0
    assert_means(model, [np.zeros(4), means[0]])


def check_host_and_device_in_one_model(comm):
    """What some ranks have on the host is averaged there, and stays where it was."""
    nccl = on_gpus("auto")
    model, means = model_on_device(nccl, "float32", 11, shapes=((3,), (4,), (5,)))
    for number in (1, 2):
        if number == 1 or nccl.rank == 0:
            param = params(model)[number]
            grad = np.asarray(param.grad)
            param.array = np.zeros(param.shape, "f")
            param.grad = grad.copy()
    operations, downloads = standin().operations(), nccl._parts.gpu.runtime.downloads
    if nccl.rank != 0:
        # Nothing can be put on a device that is none.
        model.p2.array = np.zeros(5, "f")
        model.p2.grad = np.asarray(model.p2.grad).copy()
    nccl.multi_node_mean_grad(model)
    assert_means(model, means)
    assert [isinstance(param.grad, DeviceArray) for param in params(model)] == [True, False, False]
    assert standin().operations() == operations + 1
    assert nccl._parts.gpu.runtime.downloads == downloads


def check_host_gradients_never_touch_nccl(comm):
    nccl = on_gpus("auto")
    inits = standin().inits()
    model = chainer.links.Linear(3, 2)
    model.W.grad = np.full((2, 3), nccl.rank, "f")
    nccl.multi_node_mean_grad(model)
    np.testing.assert_allclose(model.W.grad, np.full((2, 3), (nccl.size - 1) / 2))
    np.testing.assert_array_equal(nccl.allreduce(np.ones(3)), np.full(3, nccl.size))
    assert standin().inits() == inits


def check_sums_of_arrays(comm):
    nccl = on_gpus()
    for dtype in [*REALS, "int8", "uint8", "int16", "int32", "uint32", "int64", "uint64"]:
        values = np.arange(6).reshape(2, 3).astype(dtype) + nccl.rank
        total = nccl.allreduce(on_device(values))
        assert isinstance(total, DeviceArray)
        assert total.dtype == dtype
        expected = nccl.size * np.arange(6).reshape(2, 3) + sum(range(nccl.size))
        np.testing.assert_array_equal(np.asarray(total), expected.astype(dtype))
    wrapped = nccl.allreduce(on_device(np.array([100], "int8")))
    assert int(wrapped[0]) == int(np.array(100 * nccl.size).astype("int8"))
    one, two = nccl.allreduce((on_device([1.0]), on_device([[2, 3]], "int32")))
    assert (one[0], two.tolist()) == (nccl.size, [[2 * nccl.size, 3 * nccl.size]])
    assert nccl.allreduce(on_device(np.empty((0, 3), "f"))).shape == (0, 3)


def check_sums_where_ranks_differ_in_place(comm):
    need_ranks(comm, 2)
    nccl = on_gpus()
    if nccl.rank == 0:
        total = nccl.allreduce(np.ones(3))
        np.testing.assert_array_equal(total, np.full(3, nccl.size))
    else:
        total = nccl._parts.arrays.sum_on_device  # not called: rank 0's is no device's
        assert total is not None
        np.testing.assert_array_equal(nccl.allreduce(np.ones(3)), np.full(3, nccl.size))
    with raises(MismatchError, "allreduce"):
        nccl.allreduce(on_device(np.ones(3 + nccl.rank)))
    with raises(TypeError, "bool"):
        nccl.allreduce(on_device([True]))


def check_integers_have_no_means(comm):
    """As on the host; on all ranks, though only one has such a gradient; and all go on."""
    for by_nccl, made in (
        (True, on_gpus()),
        (comm.size == 1, on_gpus(uuid="the only one")),
        (False, on_gpus("flat")),
    ):
        nccl = made
        operations = standin().operations()
        for dtype in ("int32", "uint8", "bool"):
            model, means = model_on_device(nccl, shapes=((3,), (2,)))
            model.p1 = chainer.Parameter(on_device(np.zeros(2), dtype))
            if nccl.rank == nccl.size - 1:
                model.p1.grad = on_device(np.ones(2), dtype)
            with raises(TypeError, "multi_node_mean_grad", f"of dtype {dtype} cannot be averaged"):
                nccl.multi_node_mean_grad(model)
            model.p1.grad = None
            nccl.multi_node_mean_grad(model, zero_fill=True)
            assert_means(model, [means[0], None])
            assert not nccl.broken
        assert standin().operations() - operations == (3 if by_nccl else 0)


def check_split_communicators(comm):
    nccl = on_gpus()
    part = nccl.split(nccl.rank % 2, nccl.rank)
    for each in (part, nccl, part):
        model, means = model_on_device(each, "float32", 12)
        each.multi_node_mean_grad(model)
        assert_means(model, means)
    assert nccl_of(part)._channel.unique_id != nccl_of(nccl)._channel.unique_id
    assert part.name == "pure_nccl"


def check_finalize_destroys_once(comm):
    nccl = on_gpus()
    model, means = model_on_device(nccl, "float32", 13)
    nccl.multi_node_mean_grad(model)
    destroys, aborts = standin().destroys(), standin().aborts()
    nccl.finalize()
    nccl.finalize()
    assert standin().destroys() == destroys + 1
    assert standin().aborts() == aborts
    assert_means(model, means)
    with raises(RuntimeError, "finalized"):
        nccl.multi_node_mean_grad(model)


def check_mean_on_one_rank_does_not_wait(comm):
    nccl = on_gpus()
    part = nccl.split(nccl.rank, 0)
    model, means = model_on_device(part, "float32", 14)
    part.multi_node_mean_grad(model)
    assert_means(model, means, 0)


def check_bfloat16_on_the_host_is_refused(comm):
    nccl = on_gpus()
    nccl.set_config("allreduce_grad_dtype", "bfloat16")
    model = chainer.links.Linear(3, 2)
    model.W.grad = np.ones((2, 3), "f")
    with raises(ValueError, "bfloat16", "GPUs", "float16"):
        nccl.multi_node_mean_grad(model)
    nccl.barrier()
