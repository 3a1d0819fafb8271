"""Every function, link, optimizer, hook and distribution of Chainer's: a GPU's numbers are NumPy's.

The calls are those of ``tests/cupy/chainer_calls.py``.
"""

from __future__ import annotations

import json
import traceback
import warnings
from collections.abc import Iterator
from typing import Any

import chainer
import chainer_calls
import cupy
import numpy as np
from gpu_tools import STANDIN, Report
from gpu_values import apart

FARTHEST = {"float32": 2e-3, "float16": 8e-2}
"""Of the largest number of an array; second derivatives get ten times as much."""

DRAWN = "cupy.random only supports float32 and float64"
"""What CuPy has always said of float16, with Chainer's distributions."""


class Source:
    """Arrays of one dtype, the same for NumPy and CuPy; see chainer_calls."""

    def __init__(self, xp: Any, dtype: str) -> None:
        self.xp = xp
        self.dtype = np.dtype(dtype)
        self.asked: list[chainer.Variable] = []
        self.device = chainer.get_device("@numpy" if xp is np else "@cupy:0")
        self._random = np.random.RandomState(0)

    def array(self, values: Any) -> Any:
        return self.xp.asarray(values)

    def send(self, link: chainer.Link) -> chainer.Link:
        link.to_device(self.device)
        return link

    def f(self, *shape: int) -> Any:
        return self.array((self._random.rand(*shape) * 0.8 + 0.1).astype(self.dtype))

    def i(self, high: int, *shape: int) -> Any:
        return self.array(self._random.randint(0, high, shape).astype(np.int32))

    def x(self, *shape: int) -> chainer.Variable:
        self.asked.append(chainer.Variable(self.f(*shape)))
        return self.asked[-1]


def run(report: Report, shard: str = "0", shards: str = "1") -> None:
    warnings.simplefilter("ignore")
    names = sorted(chainer_calls.ALL)[int(shard) :: int(shards)]
    if STANDIN:
        names = [name for name in names if not name.startswith("D.")][:4]
    wrong: list[str] = []
    for dtype in FARTHEST:
        chainer.config.dtype = np.dtype(dtype)
        kinds = {"equal": 0, "drawn": 0, "refused": 0}
        for name in names:
            try:
                kinds[compared(name, dtype)] += 1
            except AssertionError as error:
                wrong.append(f"{dtype} {name}: {error}")
                report("differs", call=wrong[-1])
                if lost():
                    gone = "nothing can be computed here any more: the rest was not run"
                    conclude(report, [*wrong, gone])
        report(f"calls in {dtype}", **kinds, calls=sum(kinds.values()))
    conclude(report, wrong)


def lost() -> bool:
    """Say whether a kernel has failed in a way that no later one of this process outlives."""
    try:
        cupy.cuda.Device().synchronize()
    except cupy.cuda.runtime.CUDARuntimeError:
        return True
    return False


def conclude(report: Report, wrong: list[str]) -> None:
    if wrong:
        report("calls that differ", calls=len(wrong))
    assert not wrong, "\n" + "\n".join(wrong)


def compared(name: str, dtype: str) -> str:
    """Compare one call; say whether it gave equal numbers, drew them, or was refused by both."""
    host, device = results(name, np, dtype), results(name, cupy, dtype, seed=1)
    if isinstance(host, str):
        # What NumPy refuses a GPU may do.
        return "refused"
    if isinstance(device, str) and DRAWN in device:
        return "refused"
    assert not isinstance(device, str), f"fails on the GPU only: {device}"
    assert list(host) == list(device), f"{list(device)}, not {list(host)}"
    kinds = {key: (a.dtype.str, a.shape) for key, a in host.items()}
    assert kinds == {key: (a.dtype.str, a.shape) for key, a in device.items()}, (
        "dtypes or shapes differ"
    )
    if STANDIN:
        return "equal"
    far = dict(differing(host, device, dtype))
    if not far:
        return "equal"
    other = results(name, cupy, dtype, seed=2)
    drawn = any(apart(device[key], other[key]) > 0 for key in far)
    assert drawn, json.dumps({key: float(f"{far[key]:.3g}") for key in far})
    return "drawn"


def differing(host: dict, device: dict, dtype: str) -> Iterator[tuple[str, float]]:
    for key, expected in host.items():
        distance = apart(device[key], expected)
        if distance > FARTHEST[dtype] * (10 if key.startswith("second") else 1):
            yield key, distance


def results(name: str, xp: Any, dtype: str, seed: int = 0) -> dict[str, np.ndarray] | str:
    """What a call gives, with first and second derivatives; or why it gives nothing."""
    try:
        return called(chainer_calls.ALL[name], xp, dtype, seed)
    except Exception as error:  # noqa: BLE001 - compared
        place = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__}: {error} ({place.name}, line {place.lineno})"[:400]


def called(call: Any, xp: Any, dtype: str, seed: int) -> dict[str, np.ndarray]:
    np.random.seed(0)
    cupy.random.seed(seed)
    source = Source(xp, dtype)
    outputs = listed(call(source))
    found = {f"output {n}": host(o) for n, o in enumerate(outputs) if host(o) is not None}
    variables = [o for o in outputs if isinstance(o, chainer.Variable) and o.creator_node]
    if not variables or not source.asked:
        return found
    squares(variables).backward()
    found |= {
        f"gradient {n}": host(x.grad) for n, x in enumerate(source.asked) if x.grad is not None
    }
    return found | second(call, xp, dtype, seed)


def second(call: Any, xp: Any, dtype: str, seed: int) -> dict[str, np.ndarray]:
    np.random.seed(0)
    cupy.random.seed(seed)
    source = Source(xp, dtype)
    variables = [
        o for o in listed(call(source)) if isinstance(o, chainer.Variable) and o.creator_node
    ]
    try:
        grads = chainer.grad([squares(variables)], source.asked, enable_double_backprop=True)
        grads = [g for g in grads if g is not None and g.creator_node is not None]
        found = chainer.grad([squares(grads)], source.asked) if grads else []
    except (NotImplementedError, RuntimeError):
        return {}  # it has none
    return {f"second {n}": host(g) for n, g in enumerate(found) if g is not None}


def squares(variables: list[chainer.Variable]) -> chainer.Variable:
    cast = chainer.functions.cast
    return sum(chainer.functions.sum(cast(v, np.float32) ** 2) for v in variables)


def listed(outputs: Any) -> list:
    return list(outputs) if isinstance(outputs, list) else [outputs]


def host(output: Any) -> np.ndarray | None:
    """The numbers of a variable or an array, on the host."""
    array = getattr(output, "array", output)
    if array is None:
        return None
    return array.get() if isinstance(array, cupy.ndarray) else np.asarray(array)
