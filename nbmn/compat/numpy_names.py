"""Names and call forms that NumPy no longer has, given to the files that use them."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from types import ModuleType

import numpy as np

from nbmn.compat.repair import Repair, StandIn, seeing

_SCTYPES = {
    "int": [np.int8, np.int16, np.int32, np.int64],
    "uint": [np.uint8, np.uint16, np.uint32, np.uint64],
    "float": [np.float16, np.float32, np.float64, np.longdouble],
    "complex": [np.complex64, np.complex128, np.clongdouble],
    "others": [np.bool_, np.object_, np.bytes_, np.str_, np.void],
}


@contextlib.contextmanager
def _sctypes_lent() -> Iterator[None]:
    # The file reads the name while it executes, before it can be given a stand-in.
    if "sctypes" in vars(np):
        yield
        return
    np.sctypes = _SCTYPES
    try:
        yield
    finally:
        del np.sctypes


def _as_strided(module: ModuleType) -> None:
    gradient = module.AsStridedGrad
    gradient.forward = seeing(gradient.forward, np=StandIn(np, sctypes=_SCTYPES))


def _resize_images(module: ModuleType) -> None:
    module.compute_indices_and_weights = seeing(
        module.compute_indices_and_weights, numpy=StandIn(np, float=float)
    )


def _categorical(module: ModuleType) -> None:
    @functools.wraps(np.meshgrid)
    def meshgrid(*axes, **options):
        return list(np.meshgrid(*axes, **options))

    categorical = module.Categorical
    categorical.log_prob = seeing(categorical.log_prob, numpy=StandIn(np, meshgrid=meshgrid))


def _convert(module: ModuleType) -> None:
    def maximum(x1, x2, out=None):
        return np.maximum(x1, x2, out=out)

    module._concat_arrays_with_padding = seeing(
        module._concat_arrays_with_padding, numpy=StandIn(np, maximum=maximum)
    )


def _fix(module: ModuleType) -> None:
    import chainer

    @functools.wraps(module.fix)
    def fix(x):
        array = chainer.as_array(x)
        xp = chainer.backend.get_array_module(array)
        return chainer.as_variable(chainer.utils.force_array(xp.trunc(array), array.dtype))

    module.fix = fix


def _maxout(module: ModuleType) -> None:
    import chainer
    from chainer.initializer import Initializer

    class Shaped(Initializer):
        """Lets a callable fill an array in the shape it was written for."""

        def __init__(self, fill, shape) -> None:
            super().__init__()
            self._fill = fill
            self._shape = shape

        def __call__(self, array) -> None:
            self._fill(array.reshape(self._shape))

    def shaped(initial, *shape):
        plain = (Initializer, *chainer.get_array_types())
        if initial is None or np.isscalar(initial) or isinstance(initial, plain):
            return initial
        return Shaped(initial, shape) if callable(initial) else initial

    original = module.Maxout.__init__

    @functools.wraps(original)
    def __init__(self, in_size, out_size, pool_size, initialW=None, initial_bias=0):
        original(
            self,
            in_size,
            out_size,
            pool_size,
            shaped(initialW, out_size, pool_size, in_size),
            shaped(initial_bias, out_size, pool_size),
        )

    module.Maxout.__init__ = __init__


REPAIRS = (
    Repair(
        "chainer.functions.array.as_strided",
        "its own numpy.sctypes",
        "numpy.sctypes is gone since 2.0, and read at import and in backward",
        during=_sctypes_lent,
        after=_as_strided,
    ),
    Repair(
        "chainer.functions.array.resize_images",
        "its own numpy.float",
        "numpy.float is gone since 1.24: resize_images raises AttributeError",
        after=_resize_images,
    ),
    Repair(
        "chainer.distributions.categorical",
        "meshgrid as a list",
        "numpy.meshgrid returns a tuple since 2.0, which log_prob adds to a list",
        after=_categorical,
    ),
    Repair(
        "chainer.dataset.convert",
        "maximum with out= by name",
        "numpy.maximum takes no third positional argument in 2.5; padding examples used one",
        after=_convert,
    ),
    Repair(
        "chainer.functions.math.fix",
        "trunc",
        "numpy.fix is deprecated since 2.5; trunc is the same function",
        after=_fix,
    ),
    Repair(
        "chainer.links.activation.maxout",
        "initial values filled through a reshaped view",
        "assigning to an array's shape is deprecated since NumPy 2.5",
        after=_maxout,
    ),
)
