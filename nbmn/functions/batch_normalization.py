"""Batch normalization with the statistics of all ranks' batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import chainer
import numpy as np
from chainer import Variable, backend
from chainer import functions as F

from nbmn.functions.collective_communication import AllReduce
from nbmn.functions.graph import checked, once

if TYPE_CHECKING:
    from nbmn.communicators import Communicator

_NAME = "MultiNodeBatchNormalization"


def multi_node_batch_normalization(
    comm: Communicator,
    x: Any,
    gamma: Any,
    beta: Any,
    eps: float = 2e-5,
    running_mean: Any = None,
    running_var: Any = None,
    decay: float = 0.9,
    axis: tuple[int, ...] | None = None,
) -> Variable:
    """Normalize by mean and variance of all ranks' examples; collective, and so is backward.

    What a single rank would compute of all examples together, also where ranks have different
    numbers of them, or none: one all-reduce forward and one backward. Statistics are at least
    float32.

    Parameters
    ----------
    comm
        The ranks.
    x
        float, shape (batch, \\*channels, ...); the batch may be empty.
    gamma, beta
        float, shape (\\*channels). Their gradients are the means over ranks of what each rank's
        loss contributes, the same on all: what a mean of gradients over ranks leaves as it is.
    eps
        Added to the variance.
    running_mean, running_var
        Arrays of the shape of ``gamma``, which are updated in place; None for none.
    decay
        How much of them remains.
    axis
        Axes over which to normalize, ascending; by default all but those of ``gamma``.

    Returns
    -------
    Of the shape and dtype of ``x``. It can be differentiated twice; what that adds to the gradient
    of ``gamma`` is this rank's contribution.

    Raises
    ------
    TypeError, ValueError
        On all ranks: not arrays of floats, shapes that do not fit, or numbers of channels that
        differ between ranks.
    """
    inputs = checked(comm, _NAME, (x, gamma, beta))
    try:
        axes = _axes(*inputs, axis)
    except (TypeError, ValueError) as error:
        comm.agree(_NAME, None, error)
        raise
    return _Normalize(comm, axes, eps, running_mean, running_var, decay).apply(inputs)[0]


def _axes(x: Any, gamma: Any, beta: Any, axis: tuple[int, ...] | None) -> tuple[int, ...]:
    if x.dtype.kind != "f":
        raise TypeError(f"takes an array of floats, not of {x.dtype}")
    axes = (0, *range(gamma.ndim + 1, x.ndim)) if axis is None else axis
    if not all(0 <= i < x.ndim for i in axes):
        raise ValueError(f"cannot normalize an array of shape {x.shape} over the axes {axes}")
    channels = tuple(n for i, n in enumerate(x.shape) if i not in axes)
    if gamma.shape != channels or beta.shape != channels:
        raise ValueError(
            f"takes gamma and beta of shape {channels} for an array of shape {x.shape}, "
            f"not {gamma.shape} and {beta.shape}"
        )
    return axes


class _Normalize(chainer.FunctionNode):
    def __init__(
        self,
        comm: Communicator,
        axes: tuple[int, ...],
        eps: float,
        running_mean: Any,
        running_var: Any,
        decay: float,
    ) -> None:
        super().__init__()
        self.comm = comm
        self.axes = axes
        self.eps = eps
        self.running = running_mean, running_var
        self.decay = decay

    def forward(self, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        self.retain_inputs((0, 1))
        x, gamma, beta = inputs
        xp = backend.get_array_module(x)
        dtype = np.result_type(x.dtype, gamma.dtype, np.float32)
        count, mean, var = _statistics(self.comm, x, self.axes, dtype, xp)
        self.count = count
        self.mean = mean.astype(dtype)
        self.inv_std = (1 / xp.sqrt(var + self.eps)).astype(dtype)
        self._update_running(count, mean, var)
        x_hat = _x_hat(x, self.mean, self.inv_std, self.axes)
        x_hat *= _expand(gamma, self.axes, x.ndim)
        x_hat += _expand(beta, self.axes, x.ndim)
        return (x_hat.astype(x.dtype, copy=False),)

    def _update_running(self, count: float, mean: Any, var: Any) -> None:
        unbiased = var * (count / max(count - 1, 1))
        for running, fresh in zip(self.running, (mean, unbiased), strict=True):
            if running is not None and count:
                running *= self.decay
                running += ((1 - self.decay) * fresh).astype(running.dtype)

    def backward(self, target_input_indexes: Any, grad_outputs: Any) -> Any:
        x, gamma = self.get_retained_inputs()
        return _Gradients(self).apply((x, gamma, *grad_outputs))


class _Gradients(chainer.FunctionNode):
    def __init__(self, normalize: _Normalize) -> None:
        super().__init__()
        self.comm = normalize.comm
        self.axes = normalize.axes
        self.eps = normalize.eps
        self.count = max(normalize.count, 1.0)
        self.mean = normalize.mean
        self.inv_std = normalize.inv_std

    def forward(self, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        self.retain_inputs((0, 1, 2))
        x, gamma, gy = inputs
        xp = backend.get_array_module(x)
        axes, dtype = self.axes, self.mean.dtype
        x_hat = _x_hat(x, self.mean, self.inv_std, axes)
        local = [(gy * x_hat).sum(axis=axes), gy.sum(axis=axes, dtype=dtype)]
        ggamma, gbeta = self.comm.allreduce(xp.stack(local))
        gx = x_hat
        gx *= _expand(ggamma / self.count, axes, x.ndim)
        gx += _expand(gbeta / self.count, axes, x.ndim)
        xp.subtract(gy, gx, out=gx)
        gx *= _expand(gamma * self.inv_std, axes, x.ndim)
        means = [(total / self.comm.size).astype(gamma.dtype) for total in (ggamma, gbeta)]
        return (gx.astype(x.dtype, copy=False), *means)

    def backward(self, target_input_indexes: Any, grad_outputs: Any) -> Any:
        # Rare: so the gradients are computed once more, by functions that Chainer can
        # differentiate.
        retained = self.get_retained_inputs()
        inputs = [Variable(x.array) for x in retained]
        xp = backend.get_array_module(inputs[0].array)
        with chainer.using_config("enable_backprop", True):
            gs = self._differentiable(*inputs)
        ggs = [
            Variable(xp.zeros(g.shape, g.dtype)) if gg is None else F.cast(gg, g.dtype)
            for g, gg in zip(gs, grad_outputs, strict=True)
        ]
        found = chainer.grad(gs, inputs, ggs)
        return once(f"the gradients of {_NAME}", [g.array for g in found])

    def _differentiable(self, x: Variable, gamma: Variable, gy: Variable) -> list[Variable]:
        axes, ndim, count = self.axes, x.ndim, self.count
        x, gamma, gy = (F.cast(v, np.float64) for v in (x, gamma, gy))
        (sums,) = AllReduce(self.comm).call(F.stack([F.sum(x, axes), F.sum(x * x, axes)]))
        mean = sums[0] / count
        inv_std = (sums[1] / count - mean * mean + self.eps) ** -0.5
        x_hat = (x - _expand(mean, axes, ndim)) * _expand(inv_std, axes, ndim)
        (totals,) = AllReduce(self.comm).call(F.stack([F.sum(gy * x_hat, axes), F.sum(gy, axes)]))
        shared = [_expand(totals[i] / count, axes, ndim) for i in (0, 1)]
        gx = _expand(gamma * inv_std, axes, ndim) * (gy - (x_hat * shared[0] + shared[1]))
        return [gx, totals[0] / self.comm.size, totals[1] / self.comm.size]


def _statistics(
    comm: Communicator, x: Any, axes: tuple[int, ...], dtype: np.dtype, xp: Any
) -> tuple[float, Any, Any]:
    """Return number, mean and variance of all ranks' values in each channel; collective."""
    channels = tuple(n for i, n in enumerate(x.shape) if i not in axes)
    # In float64, where a difference of squares loses nothing that float32 has.
    local = xp.zeros((3, *channels), np.float64)
    if x.size:
        count = x.size // local[0].size
        mean = x.mean(axis=axes, dtype=dtype)
        local[0] = count
        local[1] = mean.astype(np.float64) * count
        local[2] = _squares(x, mean, axes) + local[1] * mean
    total = comm.allreduce(local)
    count = float(total[0].ravel()[0]) if total[0].size else 0.0
    mean, mean_of_squares = total[1:] / max(count, 1.0)
    return count, mean, xp.maximum(mean_of_squares - mean * mean, 0)


def _squares(x: Any, mean: Any, axes: tuple[int, ...]) -> Any:
    off = x - _expand(mean, axes, x.ndim)
    off *= off
    return off.sum(axis=axes)


def _x_hat(x: Any, mean: Any, inv_std: Any, axes: tuple[int, ...]) -> Any:
    x_hat = x - _expand(mean, axes, x.ndim)
    x_hat *= _expand(inv_std, axes, x.ndim)
    return x_hat


def _expand(values: Any, axes: tuple[int, ...], ndim: int) -> Any:
    """Return an array or variable per channel with an axis of length 1 for each other axis."""
    return values[tuple(None if i in axes else slice(None) for i in range(ndim))]
