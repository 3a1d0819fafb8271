"""Calls Chainer on NumPy and on a CuPy without a device; prints a line of JSON per call."""

from __future__ import annotations

# isort: off
import device_standin  # noqa: F401 - before CuPy
import kernels_made  # before Chainer
import nbmn  # noqa: F401 - repairs Chainer

# isort: on
import json
import os
import sys
import traceback
import warnings

import chainer
import chainer_calls
import numpy as np
from chainer.backends import cuda


class Source:
    """Arrays of one dtype, the same for NumPy and CuPy."""

    def __init__(self, xp, dtype):
        self.xp = xp
        self.dtype = np.dtype(dtype)
        self.asked: list = []
        self._random = np.random.RandomState(0)

    @property
    def device(self):
        return chainer.get_device("@numpy" if self.xp is np else "@cupy:0")

    def array(self, values):
        return self.xp.asarray(values)

    def send(self, link):
        link.to_device(self.device)
        return link

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
        squares(variables, 1).backward()
        facts["gradients"] = [described(x.grad) for x in source.asked]
        facts["second"] = second(call, xp, dtype)
    return facts


def squares(variables, power):
    cast = chainer.functions.cast
    return sum(chainer.functions.sum(cast(v, np.float32) ** power) for v in variables)


def second(call, xp, dtype):
    """Describe second derivatives, or say why there are none."""
    source = Source(xp, dtype)
    outputs = call(source)
    outputs = outputs if isinstance(outputs, list) else [outputs]
    variables = [o for o in outputs if isinstance(o, chainer.Variable) and o.creator_node]
    try:
        grads = chainer.grad([squares(variables, 1)], source.asked, enable_double_backprop=True)
        grads = [g for g in grads if g is not None and g.creator_node is not None]
        found = chainer.grad([squares(grads, 2)], source.asked) if grads else []
    except (NotImplementedError, RuntimeError) as error:
        return str(error)
    return [described(g) for g in found]


def main(dtype):
    warnings.simplefilter("ignore")
    cuda.cupy.cuda.set_allocator(None)  # which reuses memory: all of it shall be zero
    chainer.config.dtype = np.dtype(dtype)
    for name, call in chainer_calls.ALL.items():
        line = {"name": name}
        for place, xp in (("numpy", np), ("cupy", cuda.cupy)):
            try:
                line[place] = called(call, xp, dtype)
            except Exception as error:  # noqa: BLE001 - told to the test
                line[place] = {"error": f"{type(error).__name__}: {error}"}
                line[f"{place} at"] = traceback.format_exc()[-3000:]
        print(json.dumps(line), flush=True)
    print(json.dumps({"kernels": sorted(kernels_made.PLACES)}))
    sys.stdout.flush()
    os._exit(0)  # memory is given back after Python has ended, when nothing here can answer


main(*sys.argv[1:])
