"""Joins parts of a graph that only other ranks connect."""

from __future__ import annotations

from typing import Any

import chainer
from chainer import Variable, backend


def pseudo_connect(
    delegate_variable: Variable | None, *actual_variables: Any
) -> tuple[Variable, ...]:
    """Return variables as they are, whose backward goes on from another one as well; local.

    What this rank sends does not depend, in its own graph, on what it received before; yet
    backward must pass both, the later first. ``delegate_variable`` stands for what was
    before: it gets a gradient of zeros once those of the variables are known.

    Parameters
    ----------
    delegate_variable
        Such as :func:`~nbmn.functions.send` returns; None for none.
    actual_variables
        Variables or arrays.
    """
    if delegate_variable is None:
        return tuple(map(chainer.as_variable, actual_variables))
    return _PseudoConnect().apply((delegate_variable, *actual_variables))


class _PseudoConnect(chainer.FunctionNode):
    def check_layout_forward(self, inputs: Any) -> None:
        pass

    def forward(self, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        delegate = inputs[0]
        self._delegate = delegate.shape, delegate.dtype, backend.get_array_module(delegate)
        return inputs[1:]

    def backward(
        self, target_input_indexes: tuple[int, ...], grad_outputs: tuple[Variable | None, ...]
    ) -> tuple[Variable | None, ...]:
        shape, dtype, xp = self._delegate
        return (Variable(xp.zeros(shape, dtype)), *grad_outputs)
