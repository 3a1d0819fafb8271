"""Hypothesis on several ranks: rank 0 draws and shrinks, all ranks try each example."""

import contextlib
import functools
import os
import string
import traceback
from dataclasses import dataclass

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import nbmn
from nbmn.communicators import world

EXAMPLES = int(os.environ.get("NBMN_EXAMPLES", "60"))
PATIENCE = 5.0


@functools.cache
def control():
    """Carries examples and outcomes; stays whole when the communicator under test breaks."""
    return nbmn.create_communicator("naive")


def for_all(comm, strategy, check, examples=EXAMPLES):
    """Run ``check(comm, example)`` on all ranks for examples of the strategy."""
    before, comm.timeout = comm.timeout, PATIENCE
    try:
        if comm.rank == 0:
            _lead(comm, strategy, check, examples)
        else:
            _follow(comm, check)
    finally:
        comm.timeout = before


def _lead(comm, strategy, check, examples):
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def attempt(example):
        control().bcast_obj((True, example))
        _judge(comm, check, example)

    try:
        attempt()
    finally:
        control().bcast_obj((False, None))


def _follow(comm, check):
    while True:
        go_on, example = control().bcast_obj()
        if not go_on:
            return
        with contextlib.suppress(AssertionError):
            _judge(comm, check, example)


def _judge(comm, check, example):
    problems = control().allgather_obj(_try(comm, check, example))
    if any(problems):
        world().renew()
        told = "\n".join(f"rank {r}: {text}" for r, text in enumerate(problems) if text)
        raise AssertionError(f"{example}\n{told}")


def _try(comm, check, example):
    try:
        check(comm, example)
    except Exception:  # noqa: BLE001 - reported
        return traceback.format_exc()
    return None


@dataclass(frozen=True)
class Spec:
    """An array, to be made alike on every rank."""

    dtype: str
    shape: tuple[int, ...]
    layout: str
    seed: int
    small: bool = False
    """Whole numbers of which sums are exact in every dtype."""

    def make(self):
        """Return the array."""
        rng = np.random.default_rng(self.seed)
        dtype = np.dtype(self.dtype) if "," not in self.dtype else np.dtype(_RECORD)
        # The layouts take views of something larger.
        shape = tuple(2 * n + 1 for n in self.shape) if self.layout == "strided" else self.shape
        values = _fill(rng, dtype, shape, self.small)
        if self.layout == "strided":
            slices = [slice(n * 2 - 1, None, -2) if n else slice(0) for n in self.shape]
            return values[(*slices, ...)]
        if self.layout == "fortran":
            return np.array(values, order="F")
        if self.layout == "transposed":
            return np.array(values.T, order="C").T
        if self.layout == "read-only":
            values.flags.writeable = False
        return values


_RECORD = [("a", "<i4"), ("b", ">f8"), ("c", "S3")]
NUMBERS = [
    *("float16", "float32", "float64", "longdouble", "complex64", "complex128"),
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *(">f2", ">f4", ">f8", ">i2", ">i8", ">c16"),
]
DTYPES = [*NUMBERS, "bool", "datetime64[s]", "timedelta64[ns]", "U3", "S5", "V7", "i4,f8,S3"]
LAYOUTS = ["plain", "strided", "fortran", "transposed", "read-only"]
SHAPES = st.lists(st.integers(0, 4), max_size=3).map(tuple)


def _fill(rng, dtype, shape, small):
    if dtype.kind == "U":
        letters = rng.choice(list(string.ascii_letters), size=(*shape, 3))
        return np.array(letters).view("U3").reshape(shape).astype(dtype)
    if dtype.kind == "b":
        return np.asarray(rng.integers(0, 2, shape).astype(dtype))
    if small:
        low = 0 if dtype.kind == "u" else -8
        values = np.asarray(rng.integers(low, 9, shape)).astype(dtype)
        return values if dtype.kind != "c" else np.asarray(values * dtype.type(1 + 2j), dtype)
    size = int(np.prod(shape))
    noise = rng.integers(0, 256, size * dtype.itemsize, np.uint8)
    return noise.view(dtype).reshape(shape).copy() if size else np.zeros(shape, dtype)


def specs(dtypes=DTYPES, shapes=SHAPES, small=False):
    """Arrays of any kind."""
    return st.builds(
        Spec,
        st.sampled_from(dtypes),
        shapes,
        st.sampled_from(LAYOUTS),
        st.integers(0, 1000),
        st.just(small),
    )


def messages(dtype=None):
    """An array, or a tuple of arrays."""
    one = specs(DTYPES if dtype is None else [dtype])
    return one | st.lists(one, max_size=3).map(tuple)


def make(message):
    """Return what a message stands for."""
    return tuple(spec.make() for spec in message) if isinstance(message, tuple) else message.make()


def assert_same(got, right):
    """Compare dtype, shape and every bit."""
    if isinstance(right, (tuple, list)):
        assert type(got) is type(right)
        assert len(got) == len(right)
        for a, b in zip(got, right, strict=True):
            assert_same(a, b)
        return
    assert isinstance(got, np.ndarray)
    assert got.dtype == right.dtype
    assert got.shape == right.shape
    if got.dtype == np.longdouble:  # has padding
        np.testing.assert_array_equal(got, right)
    else:
        assert got.tobytes() == right.tobytes()
