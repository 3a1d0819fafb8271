"""Means of gradients and copies of values, by every composition, against NumPy."""

import chainer
import numpy as np
from check_composition import on_hosts
from hypothesis import strategies as st
from together import SHAPES, for_all

from nbmn.communicators import models as averaging
from nbmn.communicators import world
from nbmn.communicators.composition import NAMES
from nbmn.communicators.slots import fits
from nbmn.communicators.window import SharedMemoryBackend, _Way

HOSTS = ["xxxx", "xxyy", "xyxy", "xyyy", "xxyx", "xyzw"]
MEANS = [name for name in NAMES if name not in ("dummy", "pure_nccl")]
FLOATS = ["float16", "float32", "float64"]
TOLERANCE = {"float16": 2e-3, "float32": 1e-6, "float64": 1e-12}


@st.composite
def models(draw, size):
    """Per parameter: shape, dtype, layout, and on which ranks it has a gradient."""
    shapes = SHAPES | st.sampled_from([(1000,), (70_001,), (300, 300)])
    return draw(
        st.lists(
            st.tuples(
                shapes,
                st.sampled_from(FLOATS),
                st.sampled_from(["plain", "fortran", "shared", "read-only"]),
                st.lists(st.booleans(), min_size=size, max_size=size),
            ),
            max_size=5,
        )
    )


def contribution(spec, index, rank, seed):
    shape, dtype, _, present = spec
    if not present[rank]:
        return None
    rng = np.random.default_rng([seed, index, rank])
    return np.asarray(rng.normal(size=shape)).astype(dtype)


def make_model(described, rank, seed):
    model = chainer.Link()
    with model.init_scope():
        for index, spec in enumerate(described):
            shape, dtype, layout, _ = spec
            value = np.full(shape, index + 100 * rank, dtype)
            param = chainer.Parameter(value)
            grad = contribution(spec, index, rank, seed)
            if grad is not None:
                param.grad = laid_out(grad, layout)
            setattr(model, f"p{index}", param)
    return model


def laid_out(grad, layout):
    if layout == "fortran":
        return np.array(grad, order="F")
    if layout == "shared":
        return np.array([grad, grad])[0, ...]
    if layout == "read-only":
        grad.flags.writeable = False
    return grad


def right_mean(spec, index, size, seed, wire):
    grads = [contribution(spec, index, rank, seed) for rank in range(size)]
    given = [g if wire is None else g.astype(wire) for g in grads if g is not None]
    if not given:
        return None
    return sum(g.astype(np.float64) for g in given) / size


def check_means(comm):
    kinds = [(name, "xxxx") for name in MEANS]
    kinds += [
        (n, h) for n in ("hierarchical", "two_dimensional", "auto", "flat") for h in HOSTS[1:]
    ]
    made = [on_hosts(list(hosts), name) for name, hosts in kinds]

    def check(comm, example):
        number, described, zero_fill, wire, seed, steps = example
        other = made[number]
        other.set_config("allreduce_grad_dtype", wire)
        kept = []
        for step in range(steps):
            model = make_model(described, comm.rank, seed + step)
            other.multi_node_mean_grad(model, zero_fill)
            for index, spec in enumerate(described):
                got = getattr(model, f"p{index}").grad
                right = right_mean(spec, index, comm.size, seed + step, wire)
                if right is None and zero_fill:
                    right = np.zeros(spec[0])
                kept.append((got, right, spec))
            # What earlier steps gave is still there.
            for got, right, (shape, dtype, _, _) in kept:
                if right is None:
                    assert got is None
                    continue
                assert got.dtype == dtype
                assert got.shape == shape
                coarse = TOLERANCE[dtype]
                if wire is not None and np.dtype(wire).itemsize < np.dtype(dtype).itemsize:
                    coarse = max(coarse, TOLERANCE["float32"])
                np.testing.assert_allclose(got, right, rtol=coarse, atol=coarse)

    examples = st.tuples(
        st.integers(0, len(kinds) - 1),
        models(comm.size),
        st.booleans(),
        st.sampled_from([None, *FLOATS]),
        st.integers(0, 1000),
        st.integers(1, 3),
    )
    for_all(comm, examples, check)


def exact_mean(spec, index, size, seed, wire):
    """Return the mean added in rank order, in the dtype for sums, rounded once."""
    shape, dtype, _, _ = spec
    wide = np.promote_types(dtype, np.float32)
    total = np.zeros(shape, wide)
    for rank in range(size):
        grad = contribution(spec, index, rank, seed)
        if grad is not None:
            sent = grad if wire is None else grad.astype(wire).astype(dtype)
            total = total + sent.astype(wide)
    return (total / wide.type(size)).astype(dtype)


def check_means_to_the_last_bit(comm):
    link, _ = world().open_link(None, None)
    link.timeout = comm.timeout
    backends = [
        SharedMemoryBackend(link, calibrate=True),
        *[SharedMemoryBackend(link) for _ in _Way],
    ]
    for backend, way in zip(backends[1:], _Way, strict=True):
        backend._ways = lambda request, way=way: (
            (way if way != _Way.SLOTS or fits(request.table) else _Way.WINDOWS),
        )

    def check(comm, example):
        described, wire, seed, turns = example
        for step, turn in enumerate(turns):
            model = make_model(described, comm.rank, seed + step)
            gradients = averaging.collect(model, False)
            terms = averaging.Terms(False, wire=wire)
            averaging.average(link, backends[turn], gradients, terms)
            for index, spec in enumerate(described):
                got = getattr(model, f"p{index}").grad
                if not any(spec[3]):
                    assert got is None
                    continue
                assert got.dtype == spec[1]
                right = exact_mean(spec, index, comm.size, seed + step, wire)
                np.testing.assert_array_equal(got, right)

    examples = st.tuples(
        models(comm.size),
        st.sampled_from([None, *FLOATS]),
        st.integers(0, 1000),
        st.lists(st.integers(0, len(_Way)), min_size=1, max_size=6),
    )
    for_all(comm, examples, check)


def check_values(comm):
    kinds = [(name, "xxxx") for name in NAMES if name != "pure_nccl"]
    kinds += [(n, h) for n in ("hierarchical", "two_dimensional") for h in HOSTS[1:]]
    made = [on_hosts(list(hosts), name) for name, hosts in kinds]

    def check(comm, example):
        number, described = example
        model = make_model(described, comm.rank, 0)
        made[number].bcast_data(model)
        for index, (shape, dtype, _, _) in enumerate(described):
            got = getattr(model, f"p{index}").array
            assert got.dtype == dtype
            np.testing.assert_array_equal(got, np.full(shape, index))

    for_all(comm, st.tuples(st.integers(0, len(kinds) - 1), models(comm.size)), check)
