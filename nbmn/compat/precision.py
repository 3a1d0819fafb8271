"""Places where NumPy 2 computes in a lower, or keeps a higher, precision.

Before NumPy 2 (NEP 50), adding a float16 scalar to a Python float gave float64;
now it gives float16.
"""

from __future__ import annotations

import functools
import types
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
    original = module.Summary.add

    @functools.wraps(original)
    def add(self, value, weight=1):
        original(self, _at_least_double(value), _at_least_double(weight))

    module.Summary.add = add


def _smorms3(module: ModuleType) -> None:
    original = module.SMORMS3Rule.update_core_cpu

    @functools.wraps(original)
    def update_core_cpu(self, param):
        given = self.hyperparam
        self.hyperparam = types.SimpleNamespace(lr=float(given.lr), eps=float(given.eps))
        try:
            original(self, param)
        finally:
            self.hyperparam = given

    module.SMORMS3Rule.update_core_cpu = update_core_cpu


REPAIRS = (
    Repair(
        "chainer.reporter",
        "Summary adds in float64",
        "means of LogReport and Evaluator were summed in the values' own precision: "
        "20,000 float16 values of mean 2.5 gave 0.41",
        after=_reporter,
    ),
    Repair(
        "chainer.optimizers.smorms3",
        "hyperparameters as Python floats",
        "a numpy.float64 learning rate turned the state of float32 parameters into float64",
        after=_smorms3,
    ),
)
