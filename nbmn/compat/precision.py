"""Places where NumPy 2 computes in another precision than NumPy 1 did.

Since NEP 50 a NumPy scalar is as strong as an array: a float16 scalar added to a
Python float gives float16 (it was float64), and a float64 scalar turns a float32
array into float64 (it was float32). Nothing is raised; the numbers are wrong.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from types import ModuleType

import numpy as np

from nbmn.compat.repair import Repair


def _at_least_double(value):
    """Return a scalar or 0-d array (any device) in float64 or wider."""
    dtype = getattr(value, "dtype", None)
    if dtype is None:
        return value
    return value.astype(np.promote_types(dtype, np.float64))


def _reporter(module: ModuleType) -> None:
    original_add = module.Summary.add
    original_serialize = module.Summary.serialize

    @functools.wraps(original_add)
    def add(self, value, weight=1):
        original_add(self, _at_least_double(value), _at_least_double(weight))

    @functools.wraps(original_serialize)
    def serialize(self, serializer):
        # A count starts as an int, which no saved sum of fractional weights fits into.
        self._n = _at_least_double(self._n) if hasattr(self._n, "dtype") else float(self._n)
        original_serialize(self, serializer)

    module.Summary.add = add
    module.Summary.serialize = serialize


def _micro_average(module: ModuleType) -> None:
    original_call = module.MicroAverage.__call__
    original_serialize = module.MicroAverage.serialize

    def widen(average):
        for name in ("_numerator", "_denominator"):
            value = getattr(average, name)
            if isinstance(value, (int, float)):
                setattr(average, name, np.float64(value))

    @functools.wraps(original_call)
    def __call__(self, trainer):
        widen(self)
        original_call(self, trainer)

    @functools.wraps(original_serialize)
    def serialize(self, serializer):
        widen(self)
        original_serialize(self, serializer)

    module.MicroAverage.__call__ = __call__
    module.MicroAverage.serialize = serialize


def _optimizer(module: ModuleType) -> None:
    def __setattr__(self, name, value):
        if isinstance(value, (np.floating, np.ndarray)) and value.ndim == 0:
            value = value.item()
        object.__setattr__(self, name, value)

    module.Hyperparameter.__setattr__ = __setattr__


@dataclass(frozen=True, slots=True)
class _Gradient:
    """What the sum of squares asks of a parameter."""

    device: object
    grad: object


def _gradient_clipping(module: ModuleType) -> None:
    original = module._sum_sqnorm_grads

    def wide(grad):
        is_half = grad is not None and grad.dtype == np.float16
        return grad.astype(np.float32) if is_half else grad

    @functools.wraps(original)
    def _sum_sqnorm_grads(params):
        return original([_Gradient(param.device, wide(param.grad)) for param in params])

    module._sum_sqnorm_grads = _sum_sqnorm_grads


def _gradient_lars(module: ModuleType) -> None:
    original = module.GradientLARS.__call__

    @functools.wraps(original)
    def __call__(self, rule, param):
        import chainer

        weight, grad = param.data, param.grad
        xp = param.device.xp
        if (
            grad is None
            or weight is None
            or weight.dtype != np.float16
            or xp is chainer.backend.chainerx
        ):
            original(self, rule, param)
            return
        with chainer.using_device(param.device):
            weight_norm = xp.linalg.norm(weight.astype(np.float32))
            grad_norm = xp.linalg.norm(grad.astype(np.float32))
            scale = weight_norm / (self.eps + grad_norm + self.weight_decay * weight_norm)
            scale = xp.where(weight_norm > self.threshold, scale, 1)
            decayed = grad.astype(np.float32) + self.weight_decay * weight
            grad[...] = decayed * scale

    module.GradientLARS.__call__ = __call__


REPAIRS = (
    Repair(
        "chainer.reporter",
        "Summary adds in float64",
        "means of LogReport and Evaluator were summed in the values' own precision: "
        "20,000 float16 values of mean 2.5 gave 0.41",
        after=_reporter,
    ),
    Repair(
        "chainer.training.extensions.micro_average",
        "MicroAverage adds in float64",
        "numerator and denominator were summed in the values' own precision",
        after=_micro_average,
    ),
    Repair(
        "chainer.optimizer",
        "hyperparameters kept as Python numbers",
        "a numpy.float64 learning rate turned SMORMS3's state of float32 parameters "
        "into float64, and every optimizer's arithmetic with it",
        after=_optimizer,
    ),
    Repair(
        "chainer.optimizer_hooks.gradient_clipping",
        "the norm of float16 gradients summed in float32",
        "squares were summed over parameters in float16: past 65504 the norm is infinite "
        "and all gradients become 0",
        after=_gradient_clipping,
    ),
    Repair(
        "chainer.optimizer_hooks.gradient_lars",
        "norms of float16 parameters in float32",
        "eps vanishes when added to a float16 norm: a gradient of 0 became NaN",
        after=_gradient_lars,
    ),
)
