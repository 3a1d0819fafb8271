"""Iterators that take examples in the same order on all ranks."""

from __future__ import annotations

import copy
import hashlib
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import chainer
import numpy as np
from chainer.iterators import ShuffleOrderSampler

from nbmn.delegation import Delegate

if TYPE_CHECKING:
    from nbmn.communicators import Communicator


class ChainedOrder:
    """Shuffles by a seed and the order before, and by nothing else.

    So it does not matter how often, or how far ahead, an iterator asks, and a resumed run has the
    order of an uninterrupted one. Begun anew with the same seed, the orders are the same.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def __call__(self, current_order: np.ndarray, current_position: int) -> np.ndarray:
        """Return the order of the epoch that comes after ``current_order``."""
        del current_position
        order = np.ascontiguousarray(current_order, np.int64)
        mixed = hashlib.blake2b(order.tobytes(), digest_size=32, key=str(self.seed).encode())
        random = np.random.RandomState(np.frombuffer(mixed.digest(), np.uint32))
        return random.permutation(len(order))


class SynchronizedIterator(Delegate, chainer.dataset.Iterator):
    """Everything but the order is the wrapped iterator's; made by the function below."""

    _OWN = frozenset({"actual_iterator", "communicator"})
    _ACTUAL = "actual_iterator"

    def __init__(self, actual_iterator: Any, communicator: Communicator) -> None:
        self.actual_iterator = actual_iterator
        self.communicator = communicator

    def __next__(self) -> Any:
        """Return the next batch; local."""
        return next(self.actual_iterator)

    next = __next__

    def reset(self) -> None:
        """Begin anew, in a new order if it shuffles; local, to be called on all ranks."""
        sampler = self.actual_iterator.order_sampler
        if isinstance(sampler, ChainedOrder):
            sampler.seed += 1
        self.actual_iterator.reset()

    def finalize(self) -> None:
        """End the wrapped iterator; local."""
        self.actual_iterator.finalize()

    def serialize(self, serializer: chainer.AbstractSerializer) -> None:
        """Save or load the wrapped iterator and its seed; local, to be loaded on all ranks."""
        sampler = self.actual_iterator.order_sampler
        if isinstance(sampler, ChainedOrder):
            with suppress(KeyError):  # saved by another iterator: later orders are new
                sampler.seed = int(serializer("seed", sampler.seed))
        self.actual_iterator.serialize(serializer)

    def __copy__(self) -> SynchronizedIterator:
        return SynchronizedIterator(copy.copy(self.actual_iterator), self.communicator)

    def __del__(self) -> None:
        """Leave the wrapped iterator alone: the user may hold it."""


def create_synchronized_iterator(
    actual_iterator: Any, communicator: Communicator
) -> SynchronizedIterator:
    """Make an iterator that takes examples in the same order on all ranks; collective.

    Each rank reads its own dataset; nothing but a seed is sent, now. Without shuffling the order
    stays; a sampler of another kind than Chainer's ShuffleOrderSampler becomes a copy of rank 0's.

    Parameters
    ----------
    actual_iterator
        One of Chainer's iterators, over a dataset of the same length on all ranks. It begins anew.
    communicator
        The ranks that are to go together.

    Raises
    ------
    ValueError
        On all ranks: an iterator that has no order sampler.
    MismatchError
        On all ranks: iterators that differ in length, batch size, or in whether they shuffle
        or repeat.
    TypeError
        On all ranks: rank 0's sampler cannot be pickled.
    """
    statement, error = None, None
    if hasattr(actual_iterator, "order_sampler"):
        statement = ", ".join(
            (
                f"of {len(actual_iterator.dataset)} examples",
                f"batch_size={getattr(actual_iterator, 'batch_size', None)}",
                f"repeat={getattr(actual_iterator, 'repeat', None)}",
                f"shuffle={actual_iterator.order_sampler is not None}",
            )
        )
    else:
        error = ValueError(
            f"a {type(actual_iterator).__name__} has no order_sampler, so its order cannot be "
            "synchronized; use create_multi_node_iterator"
        )
    communicator.agree("create_synchronized_iterator", statement, error)
    sampler = actual_iterator.order_sampler
    if sampler is not None:
        if communicator.rank == 0 and type(sampler) is ShuffleOrderSampler:
            sampler = ChainedOrder(np.random.randint(0, 2**32 - 1, dtype=np.int64))
        shared = communicator.bcast_obj(copy.deepcopy(sampler) if communicator.rank == 0 else None)
        actual_iterator.order_sampler = shared
        loop = getattr(actual_iterator, "_prefetch_loop", None)
        if loop is not None:  # of a MultiprocessIterator, which took the sampler when it was made
            loop.order_sampler = shared
    actual_iterator.reset()
    return SynchronizedIterator(actual_iterator, communicator)
