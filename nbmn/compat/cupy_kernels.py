"""What Chainer asks of CuPy that CuPy 14 compiles no longer, or advises against."""

from __future__ import annotations

import functools
import importlib.util
import sys
from types import ModuleType

import numpy as np

from nbmn.compat.repair import Repair, StandIn, seeing


def _cupy_is_installed() -> bool:
    return "cupy" in sys.modules or importlib.util.find_spec("cupy") is not None


def _cuda(module: ModuleType) -> None:
    if not module.available or module._cupy_major < 14:
        return
    # The function's own mark of having warned.
    module.check_cuda_available._already_warned = True
    original_elementwise, original_raw = module.elementwise, module.raw

    @functools.wraps(original_elementwise)
    def elementwise(in_params, out_params, operation, name, **options):
        if "float16" in operation:
            options["preamble"] = "#include <cupy/float16.cuh>\n" + options.get("preamble", "")
        return original_elementwise(in_params, out_params, operation, name, **options)

    @functools.wraps(original_raw)
    def raw(code, name, *args, **options):
        if "half" in code and "cuda_fp16.h" not in code:
            code = "#include <cuda_fp16.h>\n" + code
        return original_raw(code, name, *args, **options)

    module.elementwise, module.raw = elementwise, raw


def _negative_sampling(module: ModuleType) -> None:
    gradient = module.NegativeSamplingFunctionGrad
    cuda = module.cuda
    float_added = "gi * x[(i / m) * c + j])"

    def elementwise(in_params, out_params, operation, name, **options):
        operation = operation.replace(float_added, f"(T)({float_added[:-1]}))")
        return cuda.elementwise(in_params, out_params, operation, name, **options)

    gradient.forward_gpu = seeing(gradient.forward_gpu, cuda=StandIn(cuda, elementwise=elementwise))


def _geometric(module: ModuleType) -> None:
    import chainer

    original = module.Geometric.sample_n

    @functools.wraps(original)
    def sample_n(self, n):
        xp = self.p.xp
        if self.p.dtype != np.float16 or xp is not module.cuda.cupy:
            return original(self, n)
        drawn = xp.random.geometric(self.p.array, size=(n, *self.batch_shape), dtype=np.float32)
        return chainer.Variable(drawn.astype(np.float16))

    module.Geometric.sample_n = sample_n


REPAIRS = (
    Repair(
        "chainer.backends.cuda",
        "headers of float16 for the kernels that name it; no advice to install cuDNN",
        "CuPy 14 includes them for arrays of float16 only: MultiprocessParallelUpdater's and "
        "ChainerMN's packing did not compile; and the first array sent to a GPU warned that CuPy "
        "was to be reinstalled after cuDNN, which CuPy 14 has no use for",
        after=_cuda,
        needed=_cupy_is_installed,
    ),
    Repair(
        "chainer.functions.loss.negative_sampling",
        "float16 products cast before they are added atomically",
        "CuPy 14 declares atomicAdd for equal types only: gradients of float16 did not compile",
        after=_negative_sampling,
        needed=_cupy_is_installed,
    ),
    Repair(
        "chainer.distributions.geometric",
        "float16 samples drawn as float32",
        "CuPy 14 converts no long to float16: the sampling kernel did not compile",
        after=_geometric,
        needed=_cupy_is_installed,
    ),
)
