"""Calls Chainer on NumPy and on a CuPy without a device; writes a line of JSON per call."""

from __future__ import annotations

import json
import os
import sys
import traceback
import warnings

import device_standin  # noqa: F401 - before CuPy
import nbmn  # noqa: F401 - repairs Chainer
import numpy as np

import chainer
import chainer_calls
from chainer.backends import cuda


class Source:
    """Arrays of one dtype, the same for NumPy and CuPy."""

    def __init__(self, xp, dtype):
        self.xp = xp
        self.dtype = np.dtype(dtype)
        self.asked: list = []
        self._random = np.random.RandomState(0)

    def array(self, values):
        return self.xp.asarray(values)

    def f(self, *shape):
        return self.array((self._random.rand(*shape) * 0.8 + 0.1).astype(self.dtype))

    def i(self, high, *shape):
        return self.array(self._random.randint(0, high, shape).astype(np.int32))

    def x(self, *shape):
        self.asked.append(chainer.Variable(self.f(*shape)))
        return self.asked[-1]


def described(variable):
    array = getattr(variable, "array", variable)
    return None if array is None else f"{array.dtype}{list(array.shape)}"


def called(call, xp, dtype):
    source = Source(xp, dtype)
    outputs = call(source)
    outputs = outputs if isinstance(outputs, list) else [outputs]
    facts = {"outputs": [described(o) for o in outputs]}
    variables = [o for o in outputs if isinstance(o, chainer.Variable) and o.creator_node]
    if variables and source.asked:
        total = sum(chainer.functions.sum(chainer.functions.cast(v, np.float32)) for v in variables)
        try:
            grads = chainer.grad([total], source.asked, enable_double_backprop=True)
        except Exception:  # some functions know a first derivative only
            if xp is not np:
                # On NumPy alike, or the comparison shows it.
                pass
            total.backward()
            grads = [x.grad_var for x in source.asked]
            facts["once"] = True
        facts["gradients"] = [g if g is None else described(g) for g in grads]
        again = [g for g in grads if g is not None and g.creator_node is not None]
        if again:
            squares = sum(
                chainer.functions.sum(chainer.functions.cast(g, np.float32) ** 2) for g in again
            )
            second = chainer.grad([squares], source.asked)
            facts["second"] = [g if g is None else described(g) for g in second]
    return facts


def main(which, dtype):
    warnings.simplefilter("ignore")
    cuda.cupy.cuda.set_allocator(None)  # which reuses memory: all of it shall be zero
    chainer.config.dtype = np.dtype(dtype)
    for name, call in getattr(chainer_calls, which).items():
        line = {"name": name}
        for place, xp in (("numpy", np), ("cupy", cuda.cupy)):
            try:
                line[place] = called(call, xp, dtype)
            except Exception as error:
                line[place] = {
                    "error": f"{type(error).__name__}: {error}"[:2000],
                    "at": [f"{f.filename}:{f.lineno}" for f in traceback.extract_tb(error.__traceback__)][-6:],
                }
        print(json.dumps(line), flush=True)

    sys.stdout.flush()
    os._exit(0)  # memory is given back after Python has ended, when nothing here can answer


main(*sys.argv[1:])
