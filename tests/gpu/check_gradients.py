"""Chainer's gradients without cuDNN are those of finite differences; and what float16 learns."""

from __future__ import annotations

from functools import partial

import chainer
import chainer.functions as F
import chainer.links as L
import cupy
import numpy as np
from chainer import gradient_check
from gpu_tools import STANDIN, Report, each

import nbmn

CASES = {
    "convolution": (lambda x, w: F.convolution_2d(x, w, None, 2, 1), ((2, 3, 7, 6), (4, 3, 3, 3))),
    "dilated convolution": (
        lambda x, w: F.convolution_2d(x, w, None, 1, 2, dilate=2),
        ((2, 3, 7, 6), (4, 3, 3, 3)),
    ),
    "grouped convolution": (
        lambda x, w: F.convolution_2d(x, w, None, 1, 1, groups=2),
        ((2, 4, 5, 5), (6, 2, 3, 3)),
    ),
    "convolution in 3 dimensions": (
        lambda x, w: F.convolution_nd(x, w, None, 1, 1),
        ((2, 2, 4, 4, 4), (3, 2, 3, 3, 3)),
    ),
    "deconvolution": (
        lambda x, w: F.deconvolution_2d(x, w, None, 2, 1),
        ((2, 3, 4, 4), (3, 4, 3, 3)),
    ),
    "depthwise convolution": (
        lambda x, w: F.depthwise_convolution_2d(x, w, None, 1, 1),
        ((2, 3, 5, 5), (2, 3, 3, 3)),
    ),
    "max pooling": (lambda x: F.max_pooling_2d(x, 3, 2, 1), ((2, 3, 7, 6),)),
    "average pooling": (lambda x: F.average_pooling_2d(x, 3, 2, 1), ((2, 3, 7, 6),)),
    "pooling in 3 dimensions": (lambda x: F.max_pooling_nd(x, 2), ((2, 2, 4, 4, 4),)),
    "unpooling": (lambda x: F.unpooling_2d(x, 2), ((2, 3, 4, 4),)),
    "batch normalization": (
        lambda x, g, b: F.batch_normalization(x, g, b),
        ((6, 3, 2, 2), (3,), (3,)),
    ),
    "layer normalization": (lambda x, g, b: F.layer_normalization(x, g, b), ((5, 6), (6,), (6,))),
    "LSTM": (lambda c, x: F.lstm(c, x), ((3, 4), (3, 16))),
    "softmax cross entropy": (
        lambda x: F.softmax_cross_entropy(x, cupy.asarray(np.array([1, 0, 2], "i"))),
        ((3, 4),),
    ),
}


def run(report: Report) -> None:
    cases = [(name, function, shapes) for name, (function, shapes) in CASES.items()]
    each(
        *(partial(finite_differences, *case, number) for number, case in enumerate(cases)),
        *(partial(halves, *case) for case in cases),
        partial(mixed, report),
    )
    report("gradients by finite differences, and float16 beside float32", functions=len(CASES))


def finite_differences(name: str, function, shapes, seed: int) -> None:
    rng = np.random.RandomState(seed)
    # Numbers that are apart: no step passes from one maximum to the other.
    inputs = [
        cupy.asarray(rng.permutation(int(np.prod(shape))).reshape(shape) / np.prod(shape) + 0.1)
        for shape in shapes
    ]
    outputs = function(*map(chainer.Variable, inputs))
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    grads = tuple(cupy.asarray(np.asarray(rng.randn(*y.shape))) for y in outputs)
    if STANDIN:
        return
    gradient_check.check_backward(
        function, tuple(inputs), grads, eps=1e-5, dtype=np.float64, rtol=1e-4, atol=1e-5
    )


def halves(name: str, function, shapes) -> None:
    """The same in float16 and float32 is the same, but for rounding."""
    rng = np.random.RandomState(1)
    hosts = [rng.uniform(0.1, 0.9, shape).astype("e") for shape in shapes]
    results = []
    for dtype in ("f", "e"):
        inputs = [chainer.Variable(cupy.asarray(host.astype(dtype))) for host in hosts]
        outputs = function(*inputs)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        weighted(outputs).backward()
        arrays = [*(y.array for y in outputs), *(x.grad for x in inputs)]
        assert all(array.dtype == dtype for array in arrays), name
        results.append([array.get().astype("d") for array in arrays])
    for wide, narrow in zip(*results, strict=True):
        largest = max(np.abs(wide).max(), 1e-3)
        assert STANDIN or np.abs(wide - narrow).max() < 0.03 * largest, name


def weighted(outputs: tuple[chainer.Variable, ...]) -> chainer.Variable:
    """A sum of outputs of which each counts otherwise: normalized ones have sums without slope."""
    rng = np.random.RandomState(2)
    weights = [cupy.asarray(np.asarray(rng.uniform(0.5, 2, y.shape), "f")) for y in outputs]
    return sum(F.sum(F.cast(y, np.float32) * w) for y, w in zip(outputs, weights, strict=True))


class Net(chainer.Chain):
    def __init__(self) -> None:
        super().__init__()
        with self.init_scope():
            self.conv = L.Convolution2D(1, 8, 3)
            self.norm = L.BatchNormalization(8)
            self.out = L.Linear(None, 10)

    def forward(self, x):
        return self.out(F.max_pooling_2d(F.relu(self.norm(self.conv(x))), 2))


def mixed(report: Report) -> None:
    """Training with mixed16 learns as much as with float32, by nbmn's optimizer, loss scaled."""
    losses = {}
    for dtype, wire in (("float32", None), ("mixed16", None), ("mixed16", "float16")):
        kind = chainer.mixed16 if dtype == "mixed16" else np.dtype(dtype)
        with chainer.using_config("dtype", kind):
            losses[dtype, wire] = trained(wire)
    told = {f"{dtype}, {wire or 'as they are'}": loss for (dtype, wire), loss in losses.items()}
    report("loss after 30 steps", **told)
    if not STANDIN:
        wide = losses["float32", None]
        assert all(abs(loss - wide) < 0.1 * wide + 0.05 for loss in losses.values()), told


def trained(wire: str | None) -> float:
    np.random.seed(0)
    rng = np.random.RandomState(0)
    t = rng.randint(0, 10, 64).astype("i")
    x = rng.randn(64, 1, 12, 12) * 0.3
    x[np.arange(64), 0, t] += 2  # a line that tells the class
    comm = nbmn.create_communicator("pure_nccl", allreduce_grad_dtype=wire, timeout=60)
    model = L.Classifier(Net())
    model.compute_accuracy = False
    model.to_device("@cupy:0")
    rule = chainer.optimizers.MomentumSGD(lr=0.02)
    optimizer = nbmn.create_multi_node_optimizer(rule, comm)
    optimizer.setup(model)
    if chainer.config.dtype == chainer.mixed16:
        rule.loss_scaling()
    inputs = cupy.asarray(x.astype(chainer.get_dtype(map_mixed16=np.float16)))
    targets = cupy.asarray(t)
    for _ in range(2 if STANDIN else 30):
        optimizer.update(model, inputs, targets)
    loss = float(model(inputs, targets).array.get())
    comm.finalize()
    return loss
