"""Gives each rank its part of a dataset."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from nbmn.datasets.shard import take

if TYPE_CHECKING:
    from chainer.datasets import SubDataset

    from nbmn.communicators import Communicator


class DataSizeError(RuntimeError):
    """Kept for scripts that catch it: no dataset is too large to scatter."""


def scatter_dataset(
    dataset: Any,
    comm: Communicator,
    root: int = 0,
    shuffle: bool = False,
    seed: int | None = None,
    max_buf_len: int = 256 * 1024 * 1024,
    *,
    force_equal_length: bool = True,
) -> SubDataset:
    """Give each rank its part of the root's dataset; collective.

    Only the part moves to a rank, if the examples lie in arrays, lists or Chainer's
    datasets of such (see :func:`nbmn.datasets.take`).

    Parameters
    ----------
    dataset
        Anything with ``len`` and integer indexing, at the root; ignored elsewhere.
    comm
        The ranks to scatter over.
    root
        The rank that has the dataset.
    shuffle
        Permute the examples first.
    seed
        Of the permutation (32-bit unsigned); None draws a new one each time.
    max_buf_len
        Longest single message, in bytes.
    force_equal_length
        Give every rank ``ceil(n / size)`` examples, where neighbours may share some; otherwise
        lengths differ by up to one and no example is given twice.

    Raises
    ------
    ValueError
        On all ranks: there is no dataset at the root, no such root, or a buffer length below 1.
    TypeError
        On all ranks: the dataset has no length, or a part of it cannot be pickled;
        then load it on every rank and share indices by :func:`scatter_index`.
    """
    from chainer.datasets import SubDataset

    part = comm.scatter_parts(
        "scatter_dataset",
        lambda: _cut(dataset, comm.size, shuffle, seed, force_equal_length),
        root,
        max_buf_len,
        remedy="load the dataset on every rank and share only indices, by scatter_index",
    )
    return SubDataset(part, 0, len(part))


def scatter_index(
    n_total_samples: int, comm: Communicator, root: int = 0, *, force_equal_length: bool = True
) -> tuple[int, int]:
    """Return this rank's ``(begin, end)`` among ``n_total_samples`` of the root; collective.

    Raises
    ------
    TypeError, ValueError
        On all ranks: the number of samples is no whole number, or negative.
    """
    total = comm.bcast_obj(n_total_samples, root=root)
    try:
        total = operator.index(total)
    except TypeError:
        raise TypeError(
            f"n_total_samples must be a whole number, but is {total!r} on rank {root}"
        ) from None
    if total < 0:
        raise ValueError(f"n_total_samples must not be negative, but is {total} on rank {root}")
    return bounds(total, comm.size, force_equal_length)[comm.rank]


def bounds(total: int, size: int, equal: bool) -> list[tuple[int, int]]:
    """Return ``(begin, end)`` of each rank's part of ``total`` examples."""
    begins = [total * rank // size for rank in range(size)]
    if equal:
        return [(begin, begin + -(-total // size)) for begin in begins]
    # The first ranks take one more, as ChainerMN has it.
    short, longer = divmod(total, size)
    starts = [rank * short + min(rank, longer) for rank in range(size + 1)]
    return list(itertools.pairwise(starts))


def _cut(
    dataset: Any, size: int, shuffle: bool, seed: int | None, equal: bool
) -> list[Callable[[], Any]]:
    if dataset is None:
        raise ValueError("there is no dataset (it is None)")
    total = len(dataset)
    order = np.arange(total)
    if shuffle:
        order = np.random.RandomState(seed).permutation(total)
    return [
        functools.partial(take, dataset, order[begin:end])
        for begin, end in bounds(total, size, equal)
    ]
