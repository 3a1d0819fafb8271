"""Iterators that give all ranks the batches of one of them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import chainer
import numpy as np

from nbmn.communicators.errors import CommunicatorError
from nbmn.delegation import Delegate

if TYPE_CHECKING:
    from nbmn.communicators import Communicator

_MAKE = "create_multi_node_iterator"
_NEXT = "next of a multi-node iterator"
_RESET = "reset of a multi-node iterator"

_NAMES = (
    *("epoch", "epoch_detail", "is_new_epoch", "current_position", "previous_epoch_detail"),
    *("batch_size", "repeat"),
)


@dataclass(frozen=True, slots=True)
class Progress:
    """What the master's iterator says of itself, as far as it knows."""

    values: dict[str, Any]
    dataset_size: int | None
    order: np.ndarray | None = None
    """Of examples in this epoch; None too where the others have it already."""


@dataclass(frozen=True, slots=True)
class Message:
    """What the master tells the others of one step."""

    progress: Progress
    batch: Any = None
    stops: bool = False


class _Shared(chainer.dataset.Iterator):
    """What all ranks' iterators have in common."""

    def __init__(self, communicator: Communicator, rank_master: int) -> None:
        self.communicator = communicator
        self.rank_master = rank_master

    def _exchange(
        self, operation: str, message: Message | None = None, error: Exception | None = None
    ) -> Message:
        """Return the master's message; collective, and errors are raised on all ranks."""
        comm = self.communicator
        comm.agree(operation, f"from rank {self.rank_master}", error)
        try:
            message = comm.bcast_obj(message, root=self.rank_master)
        except CommunicatorError:
            raise
        except Exception as caught:  # noqa: BLE001 - reading a pickle may raise anything
            error = caught
        comm.agree(operation, None, error)
        return message

    def __del__(self) -> None:
        """Leave the wrapped iterator alone: the user may hold it."""


class Master(Delegate, _Shared):
    """Takes batches from an iterator; everything else is the wrapped iterator's."""

    _OWN = frozenset({"actual_iterator", "communicator", "rank_master", "_told"})
    _ACTUAL = "actual_iterator"

    def __init__(self, actual_iterator: Any, communicator: Communicator, rank_master: int) -> None:
        super().__init__(communicator, rank_master)
        self.actual_iterator = actual_iterator
        self._told: Any = None
        self._tell(_MAKE, self._check)

    def __next__(self) -> Any:
        """Return the next batch; collective."""
        message = self._tell(_NEXT, lambda: next(self.actual_iterator))
        if message.stops:
            raise StopIteration
        return message.batch

    next = __next__

    def reset(self) -> None:
        """Begin anew; collective."""
        self._tell(_RESET, lambda: self.actual_iterator.reset())

    def finalize(self) -> None:
        """End the wrapped iterator; local."""
        self.actual_iterator.finalize()

    def serialize(self, serializer: chainer.AbstractSerializer) -> None:
        """Save or load the wrapped iterator; local."""
        self.actual_iterator.serialize(serializer)
        self._told = None

    def __copy__(self) -> Master:
        return Master(copy.copy(self.actual_iterator), self.communicator, self.rank_master)

    def _check(self) -> None:
        if not hasattr(self.actual_iterator, "__next__"):
            raise TypeError(f"actual_iterator is no iterator, but {self.actual_iterator!r}")

    def _tell(self, operation: str, step: Callable[[], Any]) -> Message:
        """Tell the others what a step gave, and the progress; collective."""
        message, error = None, None
        try:
            batch, stops = None, False
            try:
                batch = step()
            except StopIteration:
                stops = True
            message = Message(self._progress(), batch, stops)
        except Exception as caught:  # noqa: BLE001 - the user's dataset may raise anything
            error = caught
        return self._exchange(operation, message, error)

    def _progress(self) -> Progress:
        actual = self.actual_iterator
        values = {name: getattr(actual, name) for name in _NAMES if hasattr(actual, name)}
        dataset = getattr(actual, "dataset", None)
        size = len(dataset) if hasattr(dataset, "__len__") else None
        order = getattr(getattr(actual, "_state", None), "order", None)
        if order is None or order is self._told:
            return Progress(values, size)
        self._told = order
        return Progress(values, size, np.asarray(order))


class Receiver(_Shared):
    """Has the batches, and the progress, of the master's iterator."""

    def __init__(self, communicator: Communicator, rank_master: int) -> None:
        super().__init__(communicator, rank_master)
        self._order: np.ndarray | None = None
        self._take(self._exchange(_MAKE).progress)

    def __next__(self) -> Any:
        """Return the master's next batch; collective."""
        message = self._exchange(_NEXT)
        self._take(message.progress)
        if message.stops:
            raise StopIteration
        return message.batch

    next = __next__

    def reset(self) -> None:
        """Begin anew; collective."""
        self._take(self._exchange(_RESET).progress)

    def serialize(self, serializer: chainer.AbstractSerializer) -> None:
        """Save or load the progress, in Chainer's form; local.

        What is saved here can be loaded by the master, and the other way round.
        """
        for name in ("current_position", "epoch", "is_new_epoch"):
            if hasattr(self, name):
                setattr(self, name, serializer(name, getattr(self, name)))
        if self._order is not None:
            self._order = serializer("order", self._order.copy())
        before = getattr(self, "previous_epoch_detail", None)
        before = serializer("previous_epoch_detail", -1.0 if before is None else before)
        self.previous_epoch_detail = None if before < 0 else before
        if isinstance(serializer, chainer.Deserializer) and self.dataset_size:
            self.epoch_detail = self.epoch + self.current_position / self.dataset_size

    def __copy__(self) -> Receiver:
        return Receiver(self.communicator, self.rank_master)

    def _take(self, progress: Progress) -> None:
        self.dataset_size = progress.dataset_size
        vars(self).update(progress.values)
        if progress.order is not None:
            self._order = progress.order


def create_multi_node_iterator(
    actual_iterator: Any, communicator: Communicator, rank_master: int = 0
) -> chainer.dataset.Iterator:
    """Make an iterator that gives all ranks the batches of one rank; collective.

    Batches arrive as they are: any dtype, and tuples, dicts, texts and whatever else can be
    pickled. The end, ``epoch``, ``is_new_epoch``, ``epoch_detail``, ``current_position`` and
    ``batch_size`` are the same on all ranks. To get and to reset are collective; saving and loading
    are not.

    Parameters
    ----------
    actual_iterator
        Any of Chainer's iterators, on the master; ignored elsewhere, where None will do.
    communicator
        The ranks that share the batches.
    rank_master
        The rank that has the iterator.

    Raises
    ------
    TypeError, ValueError
        On all ranks: the master has no iterator, there is no such rank, or the ranks name
        different ones. Later an error in the master's dataset, or of a batch that cannot be
        pickled or read, is one on all ranks as well.
    """
    if communicator.rank == rank_master:
        return Master(actual_iterator, communicator, rank_master)
    return Receiver(communicator, rank_master)
