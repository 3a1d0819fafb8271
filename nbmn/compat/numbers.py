"""Numbers that users give as numpy.float64, which since NEP 50 widen what they meet.

``numpy.logspace`` and ``numpy.mean`` yield them. Where Chainer computes with one, arrays of float32
became float64, on CuPy 14 as on NumPy 2, and their gradients were refused.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType

import numpy as np

from nbmn.compat.repair import Repair


def _plain(value: object) -> object:
    return value.item() if isinstance(value, np.floating) else value


def _given_plain_numbers(*names: str) -> Callable[[ModuleType], None]:
    def after(module: ModuleType) -> None:
        for name in names:
            function = getattr(module, name)
            function.__init__ = _with_plain_numbers(function.__init__)

    return after


def _with_plain_numbers(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def __init__(self, *args, **options):
        original(self, *map(_plain, args), **{key: _plain(v) for key, v in options.items()})

    return __init__


def _repair(file: str, *names: str) -> Repair:
    return Repair(
        f"chainer.functions.{file}",
        "its numbers taken as Python's",
        "a numpy.float64 among them turned float32 into float64, and backward raised TypeError",
        after=_given_plain_numbers(*names),
    )


REPAIRS = (
    _repair("math.clip", "Clip", "ClipGrad"),
    _repair("loss.huber_loss", "HuberLoss"),
    _repair("normalization.batch_normalization", "BatchNormalization", "FixedBatchNormalization"),
    _repair("normalization.batch_renormalization", "BatchRenormalizationFunction"),
    _repair("normalization.layer_normalization", "LayerNormalization"),
    _repair("normalization.local_response_normalization", "LocalResponseNormalization"),
)
