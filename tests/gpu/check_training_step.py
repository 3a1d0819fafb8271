"""A step of ResNet-50 at one rank is as fast with nbmn as with Chainer alone, or ChainerMN."""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import chainer
import cupy
import numpy as np
from chainer.links import Classifier
from gpu_tools import STANDIN, Report, measured
from imagenet_resnet50 import ResNet50

import nbmn

MOST = 1.02
BATCHES = (2, 1) if STANDIN else (128, 8)
"""With the first the GPU is never idle, on which the bound holds; with the second Python is what
takes long, and all that it has to do besides shows: a figure."""
SIZE, WIDTH, CLASSES = (32, 4, 10) if STANDIN else (224, 64, 1000)
WARM = 1 if STANDIN else 4
REPEATS = (2, 1) if STANDIN else (25, 15)
STEPS = 2
"""Steps that are timed together."""
SECONDS = (25.0, 6.0)
"""In which the repetitions must end."""

Step = Callable[[cupy.ndarray, cupy.ndarray], None]


def run(report: Report) -> None:
    large, small = BATCHES
    x = cupy.asarray(np.random.RandomState(0).randn(large, 3, SIZE, SIZE).astype("f"))
    t = cupy.asarray(np.random.RandomState(1).randint(0, CLASSES, large).astype("i"))
    steps = ready(report, x, t)
    free = compared(report, steps, x[:small], t[:small], REPEATS[1], SECONDS[1])
    report("ratios of a step that waits for Python", batch=small, **free)
    ratios = compared(report, steps, x, t, REPEATS[0], SECONDS[0])
    report("ratios of a step", batch=large, **ratios)
    for name, ratio in ratios.items():
        if name.startswith("nbmn"):
            measured(f"time of a step, {name}", ratio, MOST)


def ready(report: Report, x: cupy.ndarray, t: cupy.ndarray) -> dict[str, Step]:
    """Return the steps by name, when each has compiled its kernels and has its memory."""
    steps: dict[str, Step] = {}
    makers = {"Chainer": plain, "Chainer again": plain, "nbmn": ours, "ChainerMN": theirs}
    for name, make in makers.items():
        try:
            steps[name] = step_of(make)
            for _ in range(WARM):
                steps[name](x, t)
        except Exception as error:
            if name != "ChainerMN":
                raise
            # It is nobody's promise that ChainerMN itself still starts.
            report(name, skipped=f"{type(error).__name__}: {error}")
            steps.pop(name, None)
    return steps


def compared(
    report: Report,
    steps: dict[str, Step],
    x: cupy.ndarray,
    t: cupy.ndarray,
    repeats: int,
    seconds: float,
) -> dict[str, float]:
    """Return the ratios of the steps' times, by what is divided by what."""
    times = interleaved(steps, x, t, repeats, seconds)
    medians = {name: statistics.median(taken) for name, taken in times.items()}
    for name, taken in times.items():
        report(
            f"a step with {name}",
            milliseconds=1e3 * medians[name],
            fastest_milliseconds=1e3 * min(taken),
            repetitions=len(taken),
            batch=len(x),
        )
    ratios = {
        f"nbmn / {name}": statistics.median(
            mine / other for mine, other in zip(times["nbmn"], times[name], strict=True)
        )
        for name in medians
        if name != "nbmn"
    }
    ratios["Chainer again / Chainer"] = statistics.median(
        a / b for a, b in zip(times["Chainer again"], times["Chainer"], strict=True)
    )
    return ratios


def plain(optimizer: chainer.Optimizer) -> chainer.Optimizer:
    return optimizer


def ours(optimizer: chainer.Optimizer) -> Any:
    return nbmn.create_multi_node_optimizer(optimizer, nbmn.create_communicator("pure_nccl"))


def theirs(optimizer: chainer.Optimizer) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import chainermn

    made = chainermn.create_communicator("pure_nccl")
    return chainermn.create_multi_node_optimizer(optimizer, made)


def step_of(make: Callable[[chainer.Optimizer], Any]) -> Step:
    model = Classifier(ResNet50(CLASSES, WIDTH), lossfun=chainer.functions.softmax_cross_entropy)
    model.compute_accuracy = False  # which would be waited for
    model.to_device("@cupy:0")
    optimizer = make(chainer.optimizers.MomentumSGD(lr=0.01))
    optimizer.setup(model)
    return lambda x, t: optimizer.update(model, x, t)


def interleaved(
    steps: dict[str, Step], x: cupy.ndarray, t: cupy.ndarray, repeats: int, seconds: float
) -> dict[str, list[float]]:
    """Time the steps by turns, each turn in another order."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    names = list(steps)
    until = time.monotonic() + seconds
    for turn in range(repeats):
        if time.monotonic() > until:
            break
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            cupy.cuda.Device().synchronize()
            began = time.perf_counter()
            for _ in range(STEPS):
                steps[name](x, t)
            cupy.cuda.Device().synchronize()
            times[name].append((time.perf_counter() - began) / STEPS)
    return times
