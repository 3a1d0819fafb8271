"""An optimizer that averages the gradients of one step while the next ones are computed."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import chainer
import numpy as np

from nbmn.communicators.models import Averaged, Gradients, Share, Terms, collect, describe
from nbmn.communicators.parameters import beside, named
from nbmn.optimizers.multi_node import MultiNodeOptimizer, Step
from nbmn.phases import phases

if TYPE_CHECKING:
    from nbmn.communicators import Communicator
    from nbmn.communicators.background import Background


@dataclass(frozen=True, slots=True)
class Buffered:
    """Gradients to average, and what they were computed from."""

    step: Step
    gradients: Gradients
    scales: tuple[float | None, ...]
    """By which they are too large; one per parameter."""
    share: Share | None = None
    """Whose count, None for all ranks'."""


@dataclass(frozen=True, slots=True)
class Means:
    """Averaged gradients that are to be applied."""

    params: Sequence[tuple[str, chainer.Parameter]]
    arrays: Sequence[Any]
    """One per parameter; None where there is none."""
    scales: Sequence[float | None]


class DoubleBufferingOptimizer(MultiNodeOptimizer):
    """A :class:`MultiNodeOptimizer` that applies each mean one update later.

    ``update`` number t starts to average the gradients of step t and applies the mean of
    those of step t-1, so the first one applies nothing. What remains at the end is applied
    by :meth:`flush`, which ``new_epoch`` calls too: after each epoch of a Trainer
    everything is applied, whatever its extensions then evaluate or save. A snapshot
    taken elsewhere holds the mean that is still to be applied, so that a resumed run equals an
    uninterrupted one; but not to the last bit where shards of unequal length make epochs end at
    different updates on different ranks, and each rank applies the mean at its own.

    Averaging is done on a thread, over a duplicate of the communicator, with any backend.
    An interrupt of an ``update`` drops the step under way, on all ranks alike.

    A deep copy, which is to be made on all ranks, goes on where this one is, with the mean that
    is still to be applied, and averages by itself; making it is local, and waits for the
    averaging. A shallow copy shares the wrapped optimizer; what is to be applied stays here.
    """

    _OWN = MultiNodeOptimizer._OWN | {"_background", "_generation", "_pending"}

    def __init__(
        self, actual_optimizer: chainer.Optimizer, communicator: Communicator, zero_fill: bool
    ) -> None:
        super().__init__(actual_optimizer, communicator, zero_fill)
        self._background: Background | None = None
        self._generation = 0
        self._pending: Buffered | Means | None = None

    def setup(self, link: chainer.Link) -> DoubleBufferingOptimizer:
        """Set the model to train and give it the values it has on rank 0; collective.

        What was averaged for a model before is applied to that first.
        """
        self.flush()
        super().setup(link)
        return self

    def update(self, lossfun: Callable[..., Any] | None = None, *args: Any, **kwds: Any) -> None:
        """Start to average this step's gradients, apply the mean of the last; collective.

        Parameters
        ----------
        lossfun
            Computes this rank's loss from ``args`` and ``kwds``. With None, the gradients
            that the parameters have are taken. Afterwards they have those that were applied.

        Raises
        ------
        MismatchError, TypeError
            On all ranks: the gradients of the step before could not be averaged.
        BrokenCommunicatorError
            Averaging failed or was interrupted, here or on another rank.
        """
        phases().reach()
        background = self._join()
        step = Step(lossfun, args, kwds)
        self._compute(step)
        share = None if self._synchronized is not None else self._restore(step)
        mine = self._collect(step, share)
        self._enter()
        before, mine = self._finish(background, mine)
        self._start(background, mine)
        self._apply(before)
        self._inside = False
        phases().mark("extensions")

    def flush(self) -> None:
        """Apply what is still being averaged, if anything is; collective.

        Call it after the last update, before the model is evaluated or saved.
        """
        background = self._background
        if self._pending is None:
            return
        if isinstance(self._pending, Means) or background.generation == self._generation:
            self._enter()
            before, _ = self._finish(background, None)
            self._apply(before)
            self._inside = False

    def new_epoch(self, auto: bool = False) -> None:
        """Apply what is still being averaged, then begin an epoch; collective."""
        self.flush()
        self.actual_optimizer.new_epoch(auto)

    def serialize(self, serializer: chainer.AbstractSerializer) -> None:
        """Save or load the optimizer's state and the mean that is still to be applied; local.

        Saving waits for the averaging. Snapshots of other optimizers can be loaded, and others
        can load this one's.
        """
        if isinstance(serializer, chainer.Deserializer):
            if serializer("t", 0) == 0:
                # Nothing was applied yet: the update rules had no state to save.
                super().serialize(_Lenient(serializer))
            else:
                super().serialize(serializer)
            self._pending = _load(serializer["double_buffering"], self.actual_optimizer.target)
        else:
            super().serialize(serializer)
            _save(serializer["double_buffering"], self._awaited())

    def __getstate__(self) -> dict[str, Any]:
        # The thread and its communicator stay here: a copy makes its own when it is used.
        return {**self.__dict__, "_pending": self._awaited(), "_background": None}

    def __copy__(self) -> DoubleBufferingOptimizer:
        double = type(self)(self.actual_optimizer, self.communicator, self.zero_fill)
        double._apart = self._apart or self._inside
        return double

    def _join(self) -> Background:
        background = self._background
        if background is None or background.lost:
            background = self._background = self.communicator.in_background()
            self._generation = background.generation
        elif background.generation != self._generation:
            # Alike on all ranks, whatever each of them had come to.
            if isinstance(self._pending, Buffered) and self.communicator.rank == 0:
                warnings.warn(
                    "averaging was interrupted: the gradients of one step are lost", stacklevel=3
                )
            self._generation = background.generation
            self._pending = self._synchronized = None
            self._apart = True
        return background

    def _collect(self, step: Step, share: Share | None = None) -> Buffered:
        gradients = collect(self.actual_optimizer.target, self.zero_fill)
        scales = tuple(param._loss_scale for _, param in gradients.params)
        return Buffered(step, gradients, scales, share)

    def _start(self, background: Background, mine: Buffered) -> None:
        terms = Terms(self.zero_fill, self._stale(), mine.share, lenient=True)
        background.start(mine.gradients, terms)
        self._pending = mine

    def _finish(
        self, background: Background | None, mine: Buffered | None
    ) -> tuple[Means | None, Buffered | None]:
        """Return the means of what is pending; ``mine`` is computed anew if values change."""
        pending = self._pending
        if not isinstance(pending, Buffered):
            self._pending = None
            return pending, mine
        try:
            means = background.finish_mean_grad()
            while means is Averaged.STALE:
                share = self._share_values()
                pending = self._redo(pending, share)
                self._start(background, pending)
                means = background.finish_mean_grad()
                mine = None if mine is None else self._redo(mine, share)
        finally:
            self._pending = None
        return Means(pending.gradients.params, means, pending.scales), mine

    def _redo(self, buffered: Buffered, share: Share) -> Buffered:
        """Return the gradients at the values that were broadcast."""
        all_count = share.total == self.communicator.size
        if not all_count:
            if self._repeat(buffered.step):
                return self._collect(buffered.step)
            self._warn(buffered.step, share)
        # More parameters may be initialised now than when these were collected.
        old = buffered.gradients
        fresh = describe(old.params, old.arrays, self.zero_fill)
        return replace(buffered, gradients=fresh, share=buffered.share if all_count else share)

    def _apply(self, means: Means | None) -> None:
        # The arrays that are gradients now are being averaged: nobody else may write there.
        self.actual_optimizer.target.cleargrads()
        if means is None:
            return
        for (_, param), mean, scale in zip(means.params, means.arrays, means.scales, strict=True):
            if mean is not None:
                param.grad = beside(param, mean)
                # Dynamic loss scaling may have changed it since.
                param._loss_scale = scale
        self._apply_gradients()

    def _awaited(self) -> Means | None:
        """Return what is pending, without taking it; local."""
        pending, background = self._pending, self._background
        if not isinstance(pending, Buffered):
            return pending
        if background.generation != self._generation:
            return None
        means = background.wait()
        # What was called off can be averaged again only together with the others.
        if means is Averaged.STALE:
            if self.communicator.rank == 0:
                warnings.warn(
                    "the gradients of one step are not in what is saved or copied here, since "
                    "values changed since: call flush() on all ranks first",
                    RuntimeWarning,
                    stacklevel=3,
                )
            return None
        return Means(pending.gradients.params, means, pending.scales)


def _save(serializer: chainer.Serializer, means: Means | None) -> None:
    serializer("pending", means is not None)
    if means is not None:
        for (name, _), mean, scale in zip(means.params, means.arrays, means.scales, strict=True):
            if mean is not None:
                serializer[name]("grad", mean)
                serializer[name]("loss_scale", math.nan if scale is None else scale)


def _load(serializer: chainer.Deserializer, target: chainer.Link) -> Means | None:
    lenient = _Lenient(serializer)
    if not lenient("pending", False):
        return None
    params, arrays, scales = named(target), [], []
    for name, _ in params:
        mean = lenient[name]("grad", None)
        scale = float(lenient[name]("loss_scale", math.nan))
        arrays.append(None if mean is None else np.array(mean))
        scales.append(None if math.isnan(scale) else scale)
    return Means(params, arrays, scales)


class _Lenient(chainer.Deserializer):
    """Leaves as it is what was not saved."""

    def __init__(self, actual: chainer.Deserializer) -> None:
        self._actual = actual

    def __getitem__(self, key: str) -> _Lenient:
        return _Lenient(self._actual[key])

    def __call__(self, key: str, value: Any) -> Any:
        try:
            return self._actual(key, value)
        except KeyError:
            return value
