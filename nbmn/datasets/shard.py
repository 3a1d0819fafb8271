"""Cuts a part out of a dataset, so that only the part has to travel."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np


@functools.singledispatch
def take(dataset: Any, indices: np.ndarray) -> Any:
    """Return a dataset of the chosen examples, without the data of the others; local.

    Defined for arrays, lists and tuples, and for Chainer's datasets that hold or wrap
    such. Any other dataset may be computed when read (files, random augmentation), so it is
    kept whole behind an index; register a better way with ``take.register(MyDataset)``.

    Parameters
    ----------
    dataset
        Anything with ``len`` and integer indexing.
    indices
        Positions in it, int64, in the order in which the examples shall come.
    """
    from chainer import datasets

    # Of these types exactly: a subclass may compute its examples.
    if type(dataset) is datasets.TupleDataset:
        parts = [take(part, indices) for part in dataset._datasets]
        return datasets.TupleDataset(*parts)
    if type(dataset) is datasets.DictDataset:
        return datasets.DictDataset(**{k: take(d, indices) for k, d in dataset._datasets.items()})
    if type(dataset) is datasets.SubDataset:
        return take(dataset._dataset, _inside(dataset, indices))
    if type(dataset) is datasets.TransformDataset:
        inner = take(dataset._dataset, indices)
        return datasets.TransformDataset(inner, dataset._transform)
    if type(dataset) is datasets.ConcatenatedDataset:
        return _take_concatenated(dataset._datasets, indices)
    if _is_cupy(dataset):
        return dataset[indices]
    return Picked(dataset, indices)


class Picked:
    """A dataset behind an index: item ``i`` is ``dataset[indices[i]]``."""

    def __init__(self, dataset: Any, indices: np.ndarray) -> None:
        self._dataset = dataset
        self._indices = indices

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, i: int) -> Any:
        return self._dataset[int(self._indices[i])]


@take.register
def _(dataset: Picked, indices: np.ndarray) -> Any:
    return take(dataset._dataset, dataset._indices[indices])


@take.register
def _(dataset: np.ndarray, indices: np.ndarray) -> np.ndarray:
    return dataset[indices]


@take.register(list)
@take.register(tuple)
def _(dataset: list | tuple, indices: np.ndarray) -> list | tuple:
    # Named tuples and other subclasses may not be built from an iterable.
    kind = tuple if isinstance(dataset, tuple) else list
    return kind(dataset[i] for i in indices.tolist())


@take.register
def _(dataset: range, indices: np.ndarray) -> list[int]:
    return [dataset[i] for i in indices.tolist()]


def _inside(dataset: Any, indices: np.ndarray) -> np.ndarray:
    """Translate positions in a SubDataset to positions in what it is a part of."""
    positions = indices + dataset._start
    return positions if dataset._order is None else np.asarray(dataset._order)[positions]


def _take_concatenated(parts: tuple, indices: np.ndarray) -> Any:
    from chainer import datasets

    ends = np.cumsum([len(part) for part in parts])
    owner = np.searchsorted(ends, indices, side="right")
    pieces, order = [], np.empty(len(indices), np.int64)
    begin = 0
    for number, part in enumerate(parts):
        mine = np.flatnonzero(owner == number)
        pieces.append(take(part, indices[mine] - (ends[number] - len(part))))
        order[mine] = np.arange(begin, begin + len(mine))
        begin += len(mine)
    return datasets.SubDataset(datasets.ConcatenatedDataset(*pieces), 0, begin, order)


def _is_cupy(dataset: Any) -> bool:
    return type(dataset).__module__.partition(".")[0] == "cupy"
