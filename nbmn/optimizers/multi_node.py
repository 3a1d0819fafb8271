"""An optimizer that applies the gradients of all ranks on every rank."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import chainer

from nbmn.communicators.interrupts import HeldInterrupt
from nbmn.communicators.models import Averaged, Share
from nbmn.delegation import Delegate
from nbmn.optimizers.repeating import Among, TalksToOthersError
from nbmn.phases import phase, phases

if TYPE_CHECKING:
    from nbmn.communicators import Communicator


@dataclass(frozen=True, slots=True)
class Step:
    """What gradients are computed from; those that the parameters have, without a function."""

    lossfun: Callable[..., Any] | None
    args: tuple[Any, ...]
    kwds: Mapping[str, Any]


class MultiNodeOptimizer(Delegate):
    """Wraps a Chainer optimizer; made by :func:`create_multi_node_optimizer`.

    Whatever is not defined here is read from and written to the wrapped optimizer.

    No gradient is thrown away. Gradients are means over ranks only if all ranks computed
    them with the same values, so the ranks broadcast their values before they first compute
    any (in ``setup`` and before the first ``update``), and whenever the set of
    initialised parameters has changed on any rank: then gradients are computed again
    with what was broadcast, if a loss function is there to do so that does not talk to ranks
    which this optimizer does not have; otherwise those count that were computed with the
    right values.

    A rank that may be apart from the others, because it left an update half way (an
    interrupt) or loaded a snapshot, says so in its next update; then all ranks take over the values
    and the optimizer's state of rank 0.
    """

    _OWN = frozenset(
        {"actual_optimizer", "communicator", "zero_fill", "_synchronized", "_apart", "_inside"}
    )
    _ACTUAL = "actual_optimizer"

    def __init__(
        self, actual_optimizer: chainer.Optimizer, communicator: Communicator, zero_fill: bool
    ) -> None:
        self.actual_optimizer = actual_optimizer
        self.communicator = communicator
        self.zero_fill = zero_fill
        self._synchronized: tuple[tuple[str, bool], ...] | None = None
        self._apart = False
        self._inside = False

    def setup(self, link: chainer.Link) -> MultiNodeOptimizer:
        """Set the model to train and give it the values it has on rank 0; collective.

        Raises
        ------
        TypeError
            On all ranks: it is no link on one.
        """
        try:
            self.actual_optimizer.setup(link)
        except Exception as error:
            # The others are in the broadcast, whose vote says that a rank cannot go on.
            self.communicator.agree("bcast_data", None, error)
            raise
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
        phases().reach()
        step = Step(lossfun, args, kwds)
        self._compute(step)
        self._enter()
        share = None
        while self._average(share) is Averaged.STALE:
            # A part of the model that some rank has just used for the first time, or a rank apart.
            share = self._restore(step)
        self._apply_gradients()
        self._inside = False
        phases().mark("extensions")

    def serialize(self, serializer: chainer.AbstractSerializer) -> None:
        """Save or load the wrapped optimizer's state; local.

        After loading, on any rank, the next update begins from the state of rank 0 on all.
        """
        self.actual_optimizer.serialize(serializer)
        if isinstance(serializer, chainer.Deserializer):
            self._apart = True

    def _apply_gradients(self) -> None:
        with phase("update"), self._states_made_whole():
            self.actual_optimizer.update(None)

    def _states_made_whole(self) -> AbstractContextManager[object]:
        """Hold an interrupt back from the update in which Chainer makes a state: it would be left
        without its parts, and taken for whole."""
        params = self.actual_optimizer.target.params()
        rules = [param.update_rule for param in params if param.array is not None]
        to_make = any(rule is not None and rule.enabled and rule.state is None for rule in rules)
        return HeldInterrupt() if to_make else nullcontext()

    def _compute(self, step: Step) -> None:
        if step.lossfun is not None:
            if self._synchronized is None:
                self._initialize(step)
                self._broadcast()
            self._backward(step)

    def _enter(self) -> None:
        """Begin what must not be left half way."""
        self._apart |= self._inside
        self._inside = True

    def _average(self, share: Share | None) -> Averaged:
        target = self.actual_optimizer.target
        return self.communicator.average_gradients(
            target, self.zero_fill, stale=self._stale(), share=share
        )

    def _stale(self) -> bool:
        return self._apart or self._synchronized != _initialized(self.actual_optimizer.target)

    def _restore(self, step: Step) -> Share | None:
        """Broadcast, and compute gradients again; return whose count where they cannot be."""
        share = self._share_values()
        if share.total == self.communicator.size:
            return None
        if self._repeat(step):
            return None
        self._warn(step, share)
        return share

    def _repeat(self, step: Step) -> bool:
        """Compute gradients again; say whether all ranks could; collective."""
        if step.lossfun is None:
            return False
        refused = False
        try:
            with Among(self.communicator):
                self._backward(step)
        except TalksToOthersError:
            refused = True
        return not self.communicator.any_rank(refused)

    def _share_values(self) -> Share:
        """Broadcast; return who had the right values before."""
        return self.communicator.count_ranks(not self._broadcast())

    def _warn(self, step: Step, share: Share) -> None:
        if self.communicator.rank == 0:
            remedy = (
                "call comm.bcast_data(model) before the first backward, or pass the loss "
                "function to update()"
                if step.lossfun is None
                else "they cannot be computed again, because the model talks to ranks that this "
                "optimizer does not have; give all parameters their shapes when they are made"
            )
            warnings.warn(
                f"{self.communicator.size - share.total} of {self.communicator.size} ranks "
                "had computed this step's gradients with values other than rank 0's, and "
                f"these do not count; {remedy}",
                stacklevel=4,
            )

    def _broadcast(self) -> bool:
        """Broadcast the values, and the state where needed; say if this rank had other values."""
        target = self.actual_optimizer.target
        changed = self.communicator.replace_data(target)
        if self.communicator.any_rank(self._apart):
            self._take_over_state()
        self._apart = False
        self._synchronized = _initialized(target)
        return changed

    def _take_over_state(self) -> None:
        """Have on all ranks the state that rank 0 has; collective."""
        at_root, actual = self.communicator.rank == 0, self.actual_optimizer
        store = chainer.serializers.DictionarySerializer()
        if at_root:
            store.save(self)
        told = (store.target, actual._loss_scale) if at_root else None
        state, actual._loss_scale = self.communicator.bcast_obj(told)
        for param in actual.target.params():
            if param.update_rule is not None:
                param.update_rule._fp32_param = None  # made again from what was broadcast
                if not at_root:
                    param.update_rule._state = None  # as it stays where rank 0 has none
        if not at_root:
            chainer.serializers.NpzDeserializer(state, strict=False).load(self)

    def _initialize(self, step: Step) -> None:
        """Let parameters take their shapes from a forward pass that leaves no other trace."""
        target = self.actual_optimizer.target
        waiting = any(param.array is None for param in target.params())
        if self.communicator.any_rank(waiting):
            # In test mode, so that running statistics and random numbers of training
            # are not consumed twice. With a graph: the loss may take gradients itself.
            with (
                chainer.using_config("train", False),
                contextlib.suppress(TalksToOthersError),
                Among(self.communicator),
            ):
                step.lossfun(*step.args, **step.kwds)

    def _backward(self, step: Step) -> None:
        actual = self.actual_optimizer
        with phase("forward"):
            loss = step.lossfun(*step.args, **step.kwds)
        with phase("backward"):
            if getattr(actual, "_use_cleargrads", True):
                actual.target.cleargrads()
            else:
                actual.target.zerograds()
            loss.backward(loss_scale=actual._loss_scale)


def _initialized(target: chainer.Link) -> tuple[tuple[str, bool], ...]:
    return tuple(sorted((name, param.array is not None) for name, param in target.namedparams()))
