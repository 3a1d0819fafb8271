"""Makes an observation the same on all ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import chainer
import numpy as np
from chainer.training import extension, util

from nbmn.extensions.together import at_root

if TYPE_CHECKING:
    from chainer.training import Trainer

    from nbmn.communicators import Communicator

Histories = Sequence[Sequence[Any]]
"""Per rank, in rank order: the values it observed, oldest first."""


class ObservationAggregator(extension.Extension):
    """Replaces an observed value by one of all ranks' values.

    Values are Python or NumPy numbers, arrays (of NumPy, CuPy or ChainerX) or Variables;
    they are moved to the host. A rank may lack the key, in some iterations or all. If no rank has
    observed it since the last time, nothing is added to the observation.

    Parameters
    ----------
    comm
        The ranks. The extension is to be called on all of them, at the same iterations.
    original_key
        What to aggregate.
    aggregated_key
        The name of the result in ``trainer.observation``; by default ``original_key``.
    comm_trigger
        When to talk to the other ranks; values observed in between are kept until then.
    aggregator
        Called at rank 0 with a list for each rank, in rank order, of the values observed since
        the last time; all ranks get what it returns, unless that is None. By default the mean of
        all values, summed in float64, in the dtype of the values (float64 of integers), a Variable
        if there are Variables among them.
    """

    trigger = 1, "iteration"
    priority = extension.PRIORITY_EDITOR
    name = None

    def __init__(
        self,
        comm: Communicator,
        original_key: str,
        aggregated_key: str | None = None,
        *,
        comm_trigger: Any = (1, "iteration"),
        aggregator: Callable[[Histories], Any] | None = None,
    ) -> None:
        self.comm = comm
        self.original_key = original_key
        self.aggregated_key = original_key if aggregated_key is None else aggregated_key
        self.comm_trigger = util.get_trigger(comm_trigger)
        self.aggregator = aggregator
        self.observation_history: list[Any] = []

    def __call__(self, trainer: Trainer) -> None:
        summary = self.compute_summary(trainer)
        if summary is not None:
            trainer.observation[self.aggregated_key] = summary

    def compute_summary(self, trainer: Trainer) -> Any:
        """Remember this iteration's value; return the result when ``comm_trigger`` says so.

        Collective then, local otherwise.

        Raises
        ------
        MismatchError
            On all ranks: not all of them have come to the same place.
        Exception
            On all ranks: the values cannot be pickled, or the aggregator raised it.
        """
        if self.original_key in trainer.observation:
            self.observation_history.append(on_host(trainer.observation[self.original_key]))
        if not self.comm_trigger(trainer):
            return None
        histories = self.comm.allgather_obj(self.observation_history)
        self.observation_history = []
        aggregator = self.aggregator
        if aggregator is None:
            return mean(histories)
        return at_root(self.comm, "ObservationAggregator", 0, lambda: aggregator(histories))

    def serialize(self, serializer: Any) -> None:
        """Save or load the values that wait for the next communication."""
        if hasattr(self.comm_trigger, "serialize"):
            self.comm_trigger.serialize(serializer["comm_trigger"])
        kept = serializer["history"]
        if isinstance(serializer, chainer.Serializer):
            kept("length", len(self.observation_history))
            for number, value in enumerate(self.observation_history):
                kept(str(number), array_of(value))
        else:
            try:
                length = kept("length", 0)
            except KeyError:  # saved by an extension that did not save them
                length = 0
            self.observation_history = [kept(str(number), None) for number in range(length)]


def on_host(value: Any) -> Any:
    """Return a value that does not depend on a device or a graph."""
    send = chainer.get_device("@numpy").send
    if isinstance(value, chainer.Variable):
        return chainer.Variable(send(value.array).copy(), requires_grad=False)
    if isinstance(value, chainer.get_array_types()):
        return send(value).copy()
    return value


def array_of(value: Any) -> np.ndarray:
    """Return a number, array or Variable on the host as an array."""
    return np.asarray(value.array if isinstance(value, chainer.Variable) else value)


def mean(histories: Histories) -> Any:
    """Return the mean of all values, rounded once; None if there are none."""
    values = [value for history in histories for value in history]
    if not values:
        return None
    arrays = [array_of(value) for value in values]
    dtype = np.result_type(*arrays)
    if not np.issubdtype(dtype, np.inexact):
        dtype = np.dtype(np.float64)
    total = sum(array.astype(np.result_type(dtype, np.float64)) for array in arrays)
    result = np.asarray(total / len(arrays)).astype(dtype)
    if any(isinstance(value, chainer.Variable) for value in values):
        return chainer.Variable(result, requires_grad=False)
    return result[()]
