"""Stops training on all ranks at the same iteration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from chainer.training import util
from chainer.training.triggers import EarlyStoppingTrigger

from nbmn.extensions.aggregator import ObservationAggregator

if TYPE_CHECKING:
    from chainer.training import Trainer

    from nbmn.communicators import Communicator


class MultiNodeEarlyStoppingTrigger:
    """Fires when the mean over all ranks of an observed value no longer improves.

    To be called at every iteration on all ranks, as a trainer does. When its interval is over,
    or training as long as it may be, on one rank (ranks with fewer examples finish an epoch
    earlier), it is so on all: all decide on the same value at the same iteration.

    Parameters
    ----------
    comm
        The ranks.
    check_trigger
        When to compare with the best value, such as ``(1, "epoch")``.
    monitor
        The observed value. Ranks may lack it.
    patience
        After so many checks without a better value it fires (3 by default); ``patients`` is
        another name for it.
    mode
        Better is ``"max"``, ``"min"``, or by the name of the value (``"auto"``).
    verbose
        Rank 0 prints what is done.
    max_trigger
        Fires then in any case.
    suffix
        The mean of the values since the last check is observed as ``monitor + suffix``.
    """

    def __init__(
        self,
        comm: Communicator,
        *,
        check_trigger: Any = (1, "epoch"),
        monitor: str = "main/loss",
        patience: int | None = None,
        mode: str = "auto",
        verbose: bool = False,
        max_trigger: Any = (100, "epoch"),
        suffix: str = "_aggregated",
        **kwargs: Any,
    ) -> None:
        self.comm = comm
        self._check = util.get_trigger(check_trigger)
        self._max = util.get_trigger(max_trigger)
        self._due = self._over = False
        self.actual_trigger = EarlyStoppingTrigger(
            check_trigger=lambda trainer: self._due,
            monitor=monitor + suffix,
            patience=patience,
            mode=mode,
            verbose=verbose and comm.rank == 0,
            max_trigger=lambda trainer: self._over,
            **kwargs,
        )
        self.aggregator = ObservationAggregator(
            comm, monitor, monitor + suffix, comm_trigger=lambda trainer: self._due
        )

    def __call__(self, trainer: Trainer) -> bool:
        """Return whether to stop, the same on all ranks; collective."""
        self._due = self.comm.any_rank(self._check(trainer))
        self._over = self.comm.any_rank(self._max(trainer))
        self.aggregator(trainer)
        return self.actual_trigger(trainer)

    def get_training_length(self) -> tuple[float, str]:
        """Return when it fires at the latest, and in what unit."""
        return self._max.get_training_length()

    def serialize(self, serializer: Any) -> None:
        """Save or load the best value, the checks since, and the values since the last check."""
        for name, trigger in (("check_trigger", self._check), ("max_trigger", self._max)):
            if hasattr(trigger, "serialize"):
                trigger.serialize(serializer[name])
        self.aggregator.serialize(serializer["aggregator"])
        actual = self.actual_trigger
        actual.best = serializer("best", float(actual.best))
        actual.count = serializer("count", actual.count)
