"""Differentiable functions: forward and backward against what NumPy says of all ranks' arrays."""

from pathlib import Path

import chainer
import numpy as np
from chainer import Variable
from chainer import functions as F
from rank_tools import need_ranks, raises

from nbmn import functions
from nbmn.communicators import CollectiveTimeoutError

DTYPES = ("float16", "float32", "float64")


def of(rank, dtype="float32", shape=(2, 3), seed=0):
    """An array that every rank can make of every other."""
    values = np.random.default_rng([rank, seed]).standard_normal(shape)
    return values.astype(dtype)


def weighted(ys, weights):
    """A loss whose gradients are the weights."""
    return sum(F.sum(F.cast(y * w, "float64")) for y, w in zip(ys, weights, strict=True))


def total(gradients):
    """Their sum as it should be: float16 added in float32 and rounded once."""
    gradients = list(gradients)
    dtype = gradients[0].dtype
    wide = np.float32 if dtype == np.float16 else dtype
    return sum(g.astype(wide) for g in gradients).astype(dtype)


def check_allgather(comm):
    everyone = range(comm.size)
    for dtype in DTYPES:
        shapes = [(rank + 1, 2) for rank in everyone]
        x = Variable(of(comm.rank, dtype, shapes[comm.rank]))
        ys = functions.allgather(comm, x)
        assert type(ys) is tuple
        for rank, y in enumerate(ys):
            np.testing.assert_array_equal(y.array, of(rank, dtype, shapes[rank]))
        weighted(ys, [of(comm.rank, dtype, s, 1 + r) for r, s in enumerate(shapes)]).backward()
        mine = [of(rank, dtype, x.shape, 1 + comm.rank) for rank in everyone]
        assert x.grad.dtype == dtype
        np.testing.assert_allclose(x.grad, total(mine), rtol=1e-6)


def check_sums_of_float16_gradients_are_those_of_float32(comm):
    need_ranks(comm, 3)
    # In float16, 2048 + 1 is 2048.
    for function, pick in [
        (lambda x: functions.allgather(comm, x)[0], 0),
        (lambda x: functions.bcast(comm, x), 0),
    ]:
        x = Variable(np.ones(1, np.float16))
        y = function(x)
        y.grad = np.array([2048 if comm.rank == 0 else 1], np.float16)
        y.backward()
        if comm.rank == pick:
            assert x.grad[0] == 2050


def check_alltoall(comm):
    everyone = range(comm.size)

    def shape(source, dest):
        return (source + 1, dest + 2)

    for dtype in DTYPES:
        xs = [Variable(of(comm.rank, dtype, shape(comm.rank, r), r)) for r in everyone]
        ys = functions.alltoall(comm, xs)
        for rank, y in enumerate(ys):
            right = of(rank, dtype, shape(rank, comm.rank), comm.rank)
            np.testing.assert_array_equal(y.array, right)
        weighted(ys, [of(comm.rank, dtype, y.shape, 10 + r) for r, y in enumerate(ys)]).backward()
        for rank, x in enumerate(xs):
            np.testing.assert_array_equal(x.grad, of(rank, dtype, x.shape, 10 + comm.rank))


def check_bcast(comm):
    for root in range(comm.size):
        for dtype in DTYPES:
            x = Variable(of(root, dtype)) if comm.rank == root else None
            y = functions.bcast(comm, x, root)
            np.testing.assert_array_equal(y.array, of(root, dtype))
            weighted([y], [of(comm.rank, dtype, seed=1)]).backward()
            if comm.rank == root:
                right = total(of(rank, dtype, seed=1) for rank in range(comm.size))
                np.testing.assert_allclose(x.grad, right, rtol=1e-6)


def check_gather_and_scatter(comm):
    shapes = [(2, rank) for rank in range(comm.size)]  # one of them is empty
    for root in range(comm.size):
        for dtype in DTYPES:
            x = Variable(of(comm.rank, dtype, shapes[comm.rank]))
            factor, gy = of(comm.rank, dtype, x.shape, 1), of(comm.rank, dtype, x.shape, 2)
            gathered = functions.gather(comm, x, root)
            parts = None
            if comm.rank == root:
                for rank, y in enumerate(gathered):
                    np.testing.assert_array_equal(y.array, of(rank, dtype, shapes[rank]))
                parts = [y * of(r, dtype, shapes[r], 1) for r, y in enumerate(gathered)]
            else:
                assert (gathered.shape, gathered.dtype) == ((0,), dtype)
            y = functions.scatter(comm, parts, root)
            np.testing.assert_array_equal(y.array, x.array * factor)
            y.grad = gy
            y.backward()
            if comm.rank != root:
                gathered.backward()
            np.testing.assert_array_equal(x.grad, gy * factor)


def check_backward_needs_no_gradient_of_this_rank(comm):
    """Inputs without, and outputs that this rank does not use."""
    x = of(comm.rank)
    x = Variable(x) if comm.rank == 0 else x
    ys = functions.allgather(comm, x)
    F.sum(ys[-1]).backward()  # on no rank is there a gradient of the first
    if comm.rank == 0:
        np.testing.assert_array_equal(
            x.grad, np.zeros((2, 3)) if comm.size > 1 else np.ones((2, 3))
        )


def check_twice(comm):
    x = Variable(of(comm.rank, "float64"))
    ys = functions.allgather(comm, x)
    zs = functions.alltoall(comm, [y**3 for y in ys])
    loss = sum(F.sum(z) for z in zs)
    (gx,) = chainer.grad([loss], [x], enable_double_backprop=True)
    # Of the sum over ranks of the loss: each rank gets every x, and gives everyone its cube.
    np.testing.assert_allclose(gx.array, 3 * comm.size * x.array**2)
    (ggx,) = chainer.grad([F.sum(gx)], [x])
    np.testing.assert_allclose(ggx.array, 6 * comm.size * x.array)


def check_gradients_of_bcast_cannot_be_differentiated(comm):
    x = Variable(of(0))
    y = functions.bcast(comm, x)
    F.sum(y * y).backward(enable_double_backprop=True)
    if comm.rank == 0:
        np.testing.assert_allclose(x.grad, 2 * comm.size * x.array, rtol=1e-6)
        with raises(RuntimeError, "Bcast", "again"):
            F.sum(x.grad_var).backward()


def check_errors_are_the_same_on_all(comm):
    last = comm.size - 1
    at_last = comm.rank == last
    many = [of(0)] * comm.size
    with raises(TypeError, f"rank {last}", "str"):
        functions.allgather(comm, "text" if at_last else of(0))
    with raises(TypeError, f"rank {last}"):
        functions.alltoall(comm, None if at_last else many)
    with raises(ValueError, f"rank {last}", f"not {comm.size + 1}"):
        functions.alltoall(comm, [*many, of(0)] if at_last else many)
    with raises(TypeError, f"rank {last}", "W has none"):
        functions.bcast(comm, chainer.links.Linear(3).W, root=last)
    with raises(ValueError, f"root {comm.size}"):
        functions.gather(comm, of(0), root=comm.size)
    with raises(ValueError, "rank 0"):
        functions.scatter(comm, None)
    assert comm.broken is None
    assert functions.bcast(comm, of(0)).shape == (2, 3)


def check_messages(comm):
    need_ranks(comm, 2)
    for dtype in DTYPES:
        if comm.rank == 0:
            x, w = Variable(of(0, dtype)), Variable(of(1, dtype, (4,)))
            sent = functions.send(x * 2, comm, 1)
            (w2,) = functions.pseudo_connect(sent, w * 1)
            functions.send((w2, x), comm, 1, tag=5).backward()
            np.testing.assert_allclose(w.grad, 3 * np.ones(4))
            right = of(1, dtype, seed=1) * np.asarray(2, dtype) + of(1, dtype, seed=2)
            np.testing.assert_allclose(x.grad, right, rtol=2e-3 if dtype == "float16" else 1e-6)
        elif comm.rank == 1:
            y = functions.recv(comm, 0)
            np.testing.assert_allclose(y.array, of(0, dtype) * np.asarray(2, dtype))
            w, x = functions.recv(comm, 0, delegate_variable=y, tag=5)
            assert (w.shape, x.dtype) == ((4,), dtype)
            loss = F.sum(y * of(1, dtype, seed=1)) + F.sum(w) * 3 + F.sum(x * of(1, dtype, seed=2))
            loss.backward()


def check_what_is_not_used_has_a_gradient_of_zeros(comm):
    need_ranks(comm, 2)
    if comm.rank == 0:
        xs = [Variable(of(n)) for n in (0, 1)]
        functions.send(xs, comm, 1).backward()
        np.testing.assert_array_equal(xs[0].grad, np.zeros((2, 3)))
        np.testing.assert_array_equal(xs[1].grad, np.ones((2, 3)))
    elif comm.rank == 1:
        ys = functions.recv(comm, 0)
        F.sum(ys[1]).backward()


def check_force_tuple(comm):
    need_ranks(comm, 2)
    if comm.rank == 0:
        functions.send(of(0), comm, 1)
    elif comm.rank == 1:
        (y,) = functions.recv(comm, 0, force_tuple=True)
        np.testing.assert_array_equal(y.array, of(0))


def check_what_cannot_be_sent_is_an_error_on_both(comm):
    need_ranks(comm, 2)
    with raises(ValueError, "itself"):
        functions.send(of(0), comm, comm.rank)
    if comm.rank == 0:
        with raises(TypeError, "str"):
            functions.send([Variable(of(0)), "text"], comm, 1)
    elif comm.rank == 1:
        with raises(TypeError, "on rank 0", "str"):
            functions.recv(comm, 0)


def check_gradients_in_a_wrong_order(comm):
    need_ranks(comm, 2)
    if comm.rank == 0:
        first = functions.send(Variable(of(0)), comm, 1)
        second = functions.send(Variable(of(0, shape=(5,))), comm, 1)
        with raises(ValueError, "sent float32[2, 3] to rank 1", "got float32[5]"):
            first.backward()
        with raises(ValueError, "sent float32[5] to rank 1", "got float32[2, 3]"):
            second.backward()
    elif comm.rank == 1:
        x, y = functions.recv(comm, 0), functions.recv(comm, 0)
        F.sum(y).backward()
        F.sum(x).backward()


def impatient_pair(comm):
    """A communicator of two ranks, of which the first gives up while the other waits."""
    pair = comm.split(0 if comm.rank < 2 else None, 0)
    if pair is not None:
        pair.timeout = (0.5, 1.0)[pair.rank]
    return pair


def place(mark):
    """Name the line of this file that ends with a mark."""
    lines = Path(__file__).read_text().splitlines()
    (number,) = [n for n, line in enumerate(lines, 1) if line.endswith(f"# {mark}")]
    return f"({Path(__file__).name}, line {number})"


def check_wrong_order_shows_the_lines_of_both(comm):
    need_ranks(comm, 2)
    pair = impatient_pair(comm)
    if comm.rank == 0:
        with raises(
            CollectiveTimeoutError,
            "rank 0 waited 0.5 s for rank 1",
            f"rank 0 is at recv from rank 1 {place('first')}",
            f"rank 1 at recv from rank 0 {place('second')} since",
        ):
            functions.recv(pair, 1)  # first
    elif comm.rank == 1:
        with raises(CollectiveTimeoutError, place("first"), place("second")):
            functions.recv(pair, 0)  # second


def check_wrong_tag_is_found_without_a_timeout(comm):
    need_ranks(comm, 2)
    pair = impatient_pair(comm)
    if comm.rank == 0:
        pair.timeout = None
        with raises(
            CollectiveTimeoutError,
            "rank 0 waits for ever, because ranks wait for each other",
            f"rank 0 at send to rank 1 with tag 3 {place('tag 3')}",
            f"rank 1 at recv from rank 0 with tag 4 {place('tag 4')}",
        ):
            functions.send(of(0), pair, 1, tag=3)  # tag 3
    elif comm.rank == 1:
        pair.timeout = 60
        with raises(CollectiveTimeoutError, "rank 1 waits for ever", place("tag 3"), "tag 4"):
            functions.recv(pair, 0, tag=4)  # tag 4


def check_backward_that_nobody_answers_shows_the_users_line(comm):
    need_ranks(comm, 2)
    pair = impatient_pair(comm)
    if comm.rank == 0:
        sent = functions.send(Variable(of(0)), pair, 1)
        with raises(
            CollectiveTimeoutError,
            f"rank 0 is at recv from rank 1 {place('backward')}",
            f"the last was recv from rank 0 {place('forward')}",
        ):
            sent.backward()  # backward
    elif comm.rank == 1:
        functions.recv(pair, 0)  # forward
