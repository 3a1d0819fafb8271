"""What functions that communicate need of Chainer's computational graph.

Chainer runs the backward of a function only where a gradient is wanted and available, but
the other ranks count on this one. So each of these functions has one more input, an empty
*token* that wants a gradient, and takes zeros for the gradients it does not get.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import chainer
import numpy as np
from chainer import Variable, backend

from nbmn.communicators.arrays import require_array

if TYPE_CHECKING:
    from nbmn.communicators import Communicator


def token(xp: Any = np) -> Variable:
    """Return an empty variable that wants a gradient."""
    return Variable(empty(xp), name="token")


def empty(xp: Any) -> Any:
    """Return what a function gives out that has no values to give."""
    return xp.empty(0, np.float32)


class Communication(chainer.FunctionNode):
    """A function that talks to other ranks, forth and back, and can be differentiated once."""

    def __init__(self, comm: Communicator) -> None:
        super().__init__()
        self.comm = comm
        self._outputs: list[tuple[tuple[int, ...], np.dtype]] = []
        self._xp: Any = np

    def exchange(self, xs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the outputs for the inputs; arrays."""
        raise NotImplementedError

    def send_back(self, gys: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the gradients of the inputs for those of the outputs; arrays."""
        raise NotImplementedError

    def call(self, *xs: Any) -> tuple[Variable, ...]:
        """Apply the function to arrays or variables."""
        return self.apply((*xs, token(backend.get_array_module(*xs))))

    def forward(self, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        ys = self.exchange(inputs[:-1])
        self._outputs = [(y.shape, y.dtype) for y in ys]
        self._xp = backend.get_array_module(*ys)
        return ys

    def backward(
        self, target_input_indexes: tuple[int, ...], grad_outputs: tuple[Variable | None, ...]
    ) -> tuple[Variable | None, ...]:
        gys = tuple(gy.array for gy in self.filled(grad_outputs))
        return (*once(self.label, self.send_back(gys)), None)

    def filled(self, gys: Sequence[Variable | None]) -> tuple[Variable, ...]:
        """Return gradients of all outputs, with zeros for those that are missing."""
        return tuple(
            Variable(self._xp.zeros(shape, dtype)) if gy is None else gy
            for gy, (shape, dtype) in zip(gys, self._outputs, strict=True)
        )


def once(label: str, gxs: Sequence[Any]) -> tuple[Variable, ...]:
    """Make variables of gradients that cannot be differentiated again."""
    found = tuple(map(Variable, gxs))
    return _Once(label).apply(found) if chainer.config.enable_backprop and found else found


class _Once(chainer.FunctionNode):
    def __init__(self, function: str) -> None:
        super().__init__()
        self._function = function

    def forward(self, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        return inputs

    def backward(self, target_input_indexes: Any, grad_outputs: Any) -> Any:
        raise RuntimeError(
            f"the gradients of {self._function} cannot be differentiated again: no rank "
            "can know that the others do so too"
        )


def checked(comm: Communicator, operation: str, xs: Iterable[Any]) -> tuple[Any, ...]:
    """Return the inputs of a collective on this rank; an error here is one on all ranks."""
    try:
        return variables(xs)
    except (TypeError, ValueError) as error:
        # The others are in the collective, whose vote says that a rank cannot go on.
        comm.agree(operation, None, error)
        raise


def variables(xs: Iterable[Any]) -> tuple[Any, ...]:
    """Return arrays or variables that Chainer and communicators accept.

    Raises
    ------
    TypeError
        They are no such, not initialised, or some on a GPU and some not.
    """
    found = tuple(np.asarray(x) if isinstance(x, np.generic) else x for x in xs)
    contents = [x.array if isinstance(x, Variable) else x for x in found]
    for content, x in zip(contents, found, strict=True):
        if content is None and isinstance(x, Variable):
            raise TypeError(f"takes variables with values, but {x.name or 'one'} has none yet")
        require_array(content)
    if not chainer.is_arrays_compatible(contents):
        raise TypeError("takes arrays that are all on the host or all on one GPU")
    return found
