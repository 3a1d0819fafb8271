"""What Chainer's convolution and batch normalization cost without cuDNN: figures, no bounds.

Each is compared with the time its arithmetic or its traffic would take at the rates that a large
matrix product and a large copy reach on the same GPU.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import chainer
import chainer.functions as F
import cupy
import numpy as np
from gpu_tools import STANDIN, Report

REPEATS = 3 if STANDIN else 15
BATCH = 2 if STANDIN else 32
WARM = 0.0 if STANDIN else 0.1
"""Seconds of work before it is timed: clocks are low while there was nothing to do."""


@dataclass(frozen=True, slots=True)
class Layer:
    """A convolution of ResNet-50."""

    name: str
    ins: int
    outs: int
    width: int
    """Of the image."""
    kernel: int
    stride: int = 1


LAYERS = (
    Layer("7×7, 3 to 64", 3, 64, 224, 7, 2),
    Layer("3×3, 64 to 64", 64, 64, 56, 3),
    Layer("1×1, 256 to 64", 256, 64, 56, 1),
    Layer("3×3, 256 to 256", 256, 256, 14, 3),
    Layer("1×1, 512 to 2048", 512, 2048, 7, 1),
)


def run(report: Report) -> None:
    product, copy = rates()
    report(
        "rates", teraflops_of_a_product=product / 1e12, terabytes_per_second_of_a_copy=copy / 1e12
    )
    for layer in LAYERS[: 1 if STANDIN else None]:
        convolution(report, layer, product, copy)
    for channels, width in ((64, 112), (256, 56), (2048, 7))[: 1 if STANDIN else None]:
        normalization(report, channels, width, copy)
    pooling(report, copy)


def rates() -> tuple[float, float]:
    """Float32 operations per second of a product, bytes moved per second of a copy."""
    n = 64 if STANDIN else 8192
    a, b = (normal((n, n)) for _ in range(2))
    big = normal((1 << 10,) if STANDIN else (1 << 28,))
    to = cupy.empty_like(big)
    product = seconds(lambda: cupy.matmul(a, b))
    copy = seconds(lambda: to.data.copy_from_device_async(big.data, big.nbytes))
    return 2 * n**3 / product, 2 * big.nbytes / copy


def convolution(report: Report, layer: Layer, product: float, copy: float) -> None:
    width = layer.width // 8 if STANDIN else layer.width
    x = chainer.Variable(normal((BATCH, layer.ins, width, width)))
    w = chainer.Variable(normal((layer.outs, layer.ins, layer.kernel, layer.kernel)))
    pad = layer.kernel // 2
    y = F.convolution_2d(x, w, None, layer.stride, pad)
    flops = 3 * 2 * y.size * layer.ins * layer.kernel**2
    # Read x, w, y's gradient twice; write y and the gradients of x and w.
    nbytes = 4 * (3 * x.size + 3 * y.size + 3 * w.size)
    both(
        report,
        f"convolution {layer.name}",
        lambda: F.convolution_2d(x, w, None, layer.stride, pad),
        [x, w],
        max(flops / product, nbytes / copy),
    )


def normalization(report: Report, channels: int, width: int, copy: float) -> None:
    x = chainer.Variable(normal((BATCH, channels, width, width)))
    gamma, beta = (chainer.Variable(normal((channels,))) for _ in range(2))
    both(
        report,
        f"batch normalization of {channels}×{width}×{width}",
        lambda: F.batch_normalization(x, gamma, beta),
        [x, gamma, beta],
        # Twice x to y, and twice x and y's gradient to x's.
        4 * 8 * x.size / copy,
    )


def pooling(report: Report, copy: float) -> None:
    x = chainer.Variable(normal((BATCH, 64, 16 if STANDIN else 112, 16 if STANDIN else 112)))
    both(
        report,
        "max pooling 3×3 of 64×112×112",
        lambda: F.max_pooling_2d(x, 3, 2),
        [x],
        4 * 2.5 * x.size / copy,
    )


def both(
    report: Report,
    name: str,
    forward: Callable[[], chainer.Variable],
    inputs: list[chainer.Variable],
    floor: float,
) -> None:
    """Time a function forward, and forward and backward."""

    def step() -> None:
        for variable in inputs:
            variable.cleargrad()
        y = forward()
        y.grad = y.array
        y.backward()

    with chainer.no_backprop_mode():
        there = seconds(forward)
    total = seconds(step)
    report(
        name,
        batch=BATCH,
        forward_milliseconds=1e3 * there,
        forward_and_backward_milliseconds=1e3 * total,
        floor_milliseconds=1e3 * floor,
        times_the_floor=total / floor,
    )


def seconds(call: Callable[[], object]) -> float:
    """Median time on the GPU, from the first kernel to the last."""
    call()  # compiles
    until = time.perf_counter() + WARM
    while time.perf_counter() < until:
        call()
        cupy.cuda.Device().synchronize()
    times = []
    for _ in range(REPEATS):
        start, end = cupy.cuda.Event(), cupy.cuda.Event()
        start.record()
        call()
        end.record()
        end.synchronize()
        times.append(cupy.cuda.get_elapsed_time(start, end) / 1e3)
    return max(statistics.median(times), 1e-9)


def normal(shape: tuple[int, ...]) -> cupy.ndarray:
    return cupy.asarray(np.random.default_rng(0).standard_normal(shape, np.float32))
