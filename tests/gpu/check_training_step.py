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
BATCH, SIZE, WIDTH, CLASSES = (2, 32, 4, 10) if STANDIN else (32, 224, 64, 1000)
WARM = 1 if STANDIN else 4
REPEATS = 2 if STANDIN else 25
STEPS = 2
"""Steps that are timed together."""
SECONDS = 40.0
"""In which the repetitions must end."""

Step = Callable[[], None]


def run(report: Report) -> None:
    x = cupy.asarray(np.random.RandomState(0).randn(BATCH, 3, SIZE, SIZE).astype("f"))
    t = cupy.asarray(np.random.RandomState(1).randint(0, CLASSES, BATCH).astype("i"))
    steps: dict[str, Step] = {}
    makers = {"Chainer": plain, "Chainer again": plain, "nbmn": ours, "ChainerMN": theirs}
    for name, make in makers.items():
        try:
            steps[name] = step_of(make, x, t)
            for _ in range(WARM):
                steps[name]()
        except Exception as error:
            if name != "ChainerMN":
                raise
            # It is nobody's promise that ChainerMN itself still starts.
            report(name, skipped=f"{type(error).__name__}: {error}")
            steps.pop(name, None)
    times = interleaved(steps)
    medians = {name: statistics.median(taken) for name, taken in times.items()}
    for name, taken in times.items():
        report(
            f"a step with {name}",
            milliseconds=1e3 * medians[name],
            fastest_milliseconds=1e3 * min(taken),
            repetitions=len(taken),
            batch=BATCH,
            parameters=sum(
                p.size for p in ResNet50(CLASSES, WIDTH).params() if p.array is not None
            ),
        )
    ratios = {
        f"nbmn / {name}": statistics.median(
            mine / other for mine, other in zip(times["nbmn"], times[name], strict=True)
        )
        for name in medians
        if name != "nbmn"
    }
    noise = statistics.median(
        a / b for a, b in zip(times["Chainer again"], times["Chainer"], strict=True)
    )
    report("ratios of a step", **ratios, **{"Chainer again / Chainer": noise})
    for name, ratio in ratios.items():
        measured(f"time of a step, {name}", ratio, MOST)


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


def step_of(make: Callable[[chainer.Optimizer], Any], x: cupy.ndarray, t: cupy.ndarray) -> Step:
    model = Classifier(ResNet50(CLASSES, WIDTH), lossfun=chainer.functions.softmax_cross_entropy)
    model.compute_accuracy = False  # which would be waited for
    model.to_device("@cupy:0")
    optimizer = make(chainer.optimizers.MomentumSGD(lr=0.01))
    optimizer.setup(model)
    return lambda: optimizer.update(model, x, t)


def interleaved(steps: dict[str, Step]) -> dict[str, list[float]]:
    """Time the steps by turns, each turn in another order."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    names = list(steps)
    until = time.monotonic() + SECONDS
    for turn in range(REPEATS):
        if time.monotonic() > until:
            break
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            cupy.cuda.Device().synchronize()
            began = time.perf_counter()
            for _ in range(STEPS):
                steps[name]()
            cupy.cuda.Device().synchronize()
            times[name].append((time.perf_counter() - began) / STEPS)
    return times
