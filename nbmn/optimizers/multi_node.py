"""An optimizer that applies the gradients of all ranks on every rank."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from nbmn.communicators.models import Averaged, Share

if TYPE_CHECKING:
    from chainer import Link, Optimizer

    from nbmn.communicators import Communicator

_OWN = frozenset({"actual_optimizer", "communicator", "zero_fill", "_synchronized"})


class MultiNodeOptimizer:
    """Wraps a Chainer optimizer; made by :func:`create_multi_node_optimizer`.

    Whatever is not defined here is read from and written to the wrapped optimizer.

    No gradient is thrown away. Gradients are means over ranks only if all ranks computed
    them with the same values, so the ranks broadcast their values before they first compute
    any (in ``setup`` and before the first ``update``), and whenever the set of
    initialised parameters has changed on any rank: then gradients are computed again
    with what was broadcast, if a loss function is there to do so; otherwise those
    count that were computed with the right values.
    """

    def __init__(
        self, actual_optimizer: Optimizer, communicator: Communicator, zero_fill: bool
    ) -> None:
        self.actual_optimizer = actual_optimizer
        self.communicator = communicator
        self.zero_fill = zero_fill
        self._synchronized: tuple[tuple[str, bool], ...] | None = None

    def setup(self, link: Link) -> MultiNodeOptimizer:
        """Set the model to train and give it the values it has on rank 0; collective."""
        self.actual_optimizer.setup(link)
        self._synchronized = None
        self.communicator.bcast_data(link)
        return self

    def update(self, lossfun: Callable[..., Any] | None = None, *args: Any, **kwds: Any) -> None:
        """Update the parameters with the mean of all ranks' gradients; collective.

        Parameters
        ----------
        lossfun
            Computes this rank's loss from ``args`` and ``kwds``. With None, the gradients
            that the parameters have are taken.

        Raises
        ------
        MismatchError
            On all ranks: the ranks' models have different parameters.
        """
        target = self.actual_optimizer.target
        if lossfun is None:
            self._update_given(target)
        else:
            self._update_computed(target, lossfun, args, kwds)
        self.actual_optimizer.update(None)

    def _update_computed(
        self, target: Link, lossfun: Callable[..., Any], args: tuple, kwds: dict[str, Any]
    ) -> None:
        if self._synchronized is None:
            self._initialize(target, lossfun, args, kwds)
            self._broadcast(target)
        self._backward(target, lossfun, args, kwds)
        while self._average(target) is Averaged.STALE:
            # A part of the model that some rank has just used for the first time.
            if self.communicator.any_rank(self._broadcast(target)):
                self._backward(target, lossfun, args, kwds)

    def _update_given(self, target: Link) -> None:
        if self._average(target) is not Averaged.STALE:
            return
        share = self.communicator.count_ranks(not self._broadcast(target))
        if share.total < self.communicator.size and self.communicator.rank == 0:
            warnings.warn(
                f"{self.communicator.size - share.total} of {self.communicator.size} ranks "
                "had computed this step's gradients with values other than rank 0's, and "
                "these do not count; call comm.bcast_data(model) before the first "
                "backward, or pass the loss function to update()",
                stacklevel=3,
            )
        self._average(target, share)

    def _average(self, target: Link, share: Share | None = None) -> Averaged:
        return self.communicator.average_gradients(
            target,
            self.zero_fill,
            stale=self._synchronized != _initialized(target),
            share=share,
        )

    def _broadcast(self, target: Link) -> bool:
        """Broadcast the values; return whether this rank had other ones."""
        changed = self.communicator.replace_data(target)
        self._synchronized = _initialized(target)
        return changed

    def _initialize(
        self, target: Link, lossfun: Callable[..., Any], args: tuple, kwds: dict[str, Any]
    ) -> None:
        """Let parameters take their shapes from a forward pass that leaves no other trace."""
        waiting = any(param.array is None for param in target.params())
        if self.communicator.any_rank(waiting):
            import chainer

            # In test mode, so that running statistics and random numbers of training
            # are not consumed twice. With a graph: the loss may take gradients itself.
            with chainer.using_config("train", False):
                lossfun(*args, **kwds)

    def _backward(
        self, target: Link, lossfun: Callable[..., Any], args: tuple, kwds: dict[str, Any]
    ) -> None:
        actual = self.actual_optimizer
        loss = lossfun(*args, **kwds)
        if getattr(actual, "_use_cleargrads", True):
            target.cleargrads()
        else:
            target.zerograds()
        loss.backward(loss_scale=actual._loss_scale)

    def __getattr__(self, name: str) -> Any:
        if name in _OWN:  # not there yet: while being copied or unpickled
            raise AttributeError(name)
        return getattr(self.actual_optimizer, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _OWN:
            object.__setattr__(self, name, value)
        else:
            setattr(self.actual_optimizer, name, value)


def _initialized(target: Link) -> tuple[tuple[str, bool], ...]:
    return tuple(sorted((name, param.array is not None) for name, param in target.namedparams()))


def create_multi_node_optimizer(
    actual_optimizer: Optimizer,
    communicator: Communicator,
    double_buffering: bool = False,
    zero_fill: bool = True,
) -> MultiNodeOptimizer:
    """Make an optimizer data-parallel over the ranks of a communicator; local.

    Parameters
    ----------
    actual_optimizer
        Any Chainer optimizer. If it is set up already, ``setup`` need not be called again.
    communicator
        Averages the gradients.
    double_buffering
        Overlap averaging with the next forward and backward; not available yet.
    zero_fill
        Give initialised parameters that no rank used a gradient of zeros (True), or leave
        their gradients None (False).

    Raises
    ------
    NotImplementedError
        ``double_buffering`` is true.
    """
    if double_buffering:
        raise NotImplementedError(
            "double_buffering=True is not available in this version; leave it out: "
            "gradients are then averaged before each update"
        )
    return MultiNodeOptimizer(actual_optimizer, communicator, zero_fill)
