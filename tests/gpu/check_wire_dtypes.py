"""Narrow dtypes on the wire, and averaging in the background, on one rank by NCCL."""

from __future__ import annotations

import itertools
from functools import partial

import chainer
import numpy as np
from gpu_tools import Report, each
from gpu_values import SHAPES, model_of, put, random, same, wire_dtype

import nbmn

WIRES = (None, "float16", "bfloat16", "float32", "float64")
OWN = ("float16", "float32", "float64")
STEPS = 4


def run(report: Report) -> None:
    each(partial(rounded, report), partial(background, report))


def rounded(report: Report) -> None:
    """Each gradient is rounded once to the wire's dtype and back: the very bits."""
    for own, wire in itertools.product(OWN, WIRES):
        comm = nbmn.create_communicator("pure_nccl", allreduce_grad_dtype=wire, timeout=60)
        model, _ = model_of(0, 1, own)
        given = [getattr(model, f"p{number}").grad.get() for number in range(len(SHAPES))]
        comm.multi_node_mean_grad(model)
        for number, host in enumerate(given):
            expected = through(host, wire)
            same(getattr(model, f"p{number}").grad, expected, what=f"{own} as {wire}")
        comm.finalize()
    report("bits of rounded gradients", dtypes=len(OWN), wires=len(WIRES))


def through(values: np.ndarray, wire: str | None) -> np.ndarray:
    return values if wire is None else values.astype(wire_dtype(wire)).astype(values.dtype)


def background(report: Report) -> None:
    """Double buffering applies each gradient one update later, and the last at the flush."""
    for own, wire in itertools.product(("float16", "float32"), (None, "float16", "bfloat16")):
        comm = nbmn.create_communicator("pure_nccl", allreduce_grad_dtype=wire, timeout=60)
        model, _ = model_of(0, 1, own)
        optimizer = nbmn.create_multi_node_optimizer(
            chainer.optimizers.SGD(lr=0.5), comm, double_buffering=True
        )
        optimizer.setup(model)
        what = f"double buffering, {own} as {wire}"
        values = [np.zeros(shape, own) for shape in SHAPES]
        late: list[np.ndarray] | None = None
        for step in range(STEPS):
            grads = [random((9, step, n), shape, own) for n, shape in enumerate(SHAPES)]
            for number, grad in enumerate(grads):
                getattr(model, f"p{number}").grad = put(grad)
            optimizer.update()
            values = values if late is None else applied(values, late, wire)
            late = grads
            compare(model, values, own, what)
        optimizer.flush()
        compare(model, applied(values, late, wire), own, f"{what}, flushed")
        comm.finalize()
    report("double buffering", updates=STEPS)


def applied(values, grads, wire):
    pairs = zip(values, grads, strict=True)
    return [np.asarray(v - v.dtype.type(0.5) * through(g, wire), v.dtype) for v, g in pairs]


def compare(model, values, own: str, what: str) -> None:
    rtol = 4e-3 if own == "float16" else 1e-6
    for number, value in enumerate(values):
        same(getattr(model, f"p{number}").array, value, rtol, what, kernels=True)
