"""Evaluates on all ranks, each on its part of the dataset."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from nbmn.extensions.together import together

if TYPE_CHECKING:
    from chainer.training.extensions import Evaluator

    from nbmn.communicators import Communicator

Sums = dict[str, tuple[float, float]]
"""Per key: the weighted sum of its values, and the sum of the weights."""


def create_multi_node_evaluator(actual_evaluator: Evaluator, communicator: Communicator) -> Any:
    """Make an evaluator report, on all ranks, the means over all ranks' examples; local.

    Every observed value counts with the number of examples in its batch, so that means of
    per-example values do not depend on how examples are dealt out to batches and ranks; a value
    observed as ``(value, weight)`` counts with its own weight. Shards may differ in
    length or be empty. A key counts where it was observed, and all ranks report the same keys.

    Parameters
    ----------
    actual_evaluator
        A ``chainer.training.extensions.Evaluator``, which is left as it is. If its class
        overrides ``evaluate``, that is called on each rank, and what it returns counts with the
        number of examples that it took from the main iterator; if none, with all of its dataset.
    communicator
        The ranks to evaluate on. Calling the result is collective over them; an exception
        in the evaluation on one rank is an error on all.

    Returns
    -------
    An evaluator of the same class with the same name, trigger and priority.

    Raises
    ------
    TypeError
        ``evaluate`` was replaced on the evaluator itself.
    """
    from chainer.training.extensions import Evaluator

    kind = type(actual_evaluator)
    if "evaluate" in vars(actual_evaluator):
        raise TypeError("override evaluate in a subclass, not on the evaluator itself")
    local = _evaluate_batches if kind.evaluate is Evaluator.evaluate else _evaluate_custom

    def evaluate(self: Any) -> dict[str, float]:
        sums: Sums = {}
        with together(communicator, "the evaluation"):
            sums = local(self)
        return means(communicator.allgather_obj(sums))

    multi_node = copy.copy(actual_evaluator)
    multi_node.__class__ = type(f"MultiNode{kind.__name__}", (kind,), {"evaluate": evaluate})
    return multi_node


def means(all_sums: Iterable[Sums]) -> dict[str, float]:
    """Merge sums in the given order; keys in the order in which they first appear."""
    merged: Sums = {}
    for sums in all_sums:
        for key, (total, weight) in sums.items():
            before = merged.get(key, (0.0, 0.0))
            merged[key] = (before[0] + total, before[1] + weight)
    return {
        key: total / weight if weight else float("nan") for key, (total, weight) in merged.items()
    }


def add(sums: Sums, observation: Mapping[str, Any], count: int) -> None:
    """Add the scalars of an observation, which count ``count`` unless they say otherwise."""
    for key, value in observation.items():
        weight: Any = count
        if isinstance(value, tuple):
            value, weight = value
        scalar, weight = _scalar(value), _scalar(weight)
        if scalar is None or weight is None:
            continue
        before = sums.get(key, (0.0, 0.0))
        sums[key] = (before[0] + scalar * weight, before[1] + weight)


def _scalar(value: Any) -> float | None:
    """Return a number or a 0-d array (on any device, also in a Variable) as float."""
    value = getattr(value, "array", value)
    if isinstance(value, (int, float, np.number, np.bool_)):
        return float(value)
    if getattr(value, "ndim", None) == 0:
        return float(value)
    return None


def _evaluate_batches(evaluator: Any) -> Sums:
    import chainer
    from chainer.dataset import convert

    eval_func = evaluator.eval_func or evaluator.get_target("main")
    if evaluator.eval_hook:
        evaluator.eval_hook(evaluator)
    sums: Sums = {}
    iterator = evaluator.get_iterator("main")
    if is_empty(iterator):
        return sums
    for batch in _one_sweep(iterator):
        observation: dict[str, Any] = {}
        with chainer.reporter.report_scope(observation):
            inputs = convert._call_converter(evaluator.converter, batch, evaluator.device)
            with chainer.no_backprop_mode():
                if isinstance(inputs, tuple):
                    eval_func(*inputs)
                elif isinstance(inputs, dict):
                    eval_func(**inputs)
                else:
                    eval_func(inputs)
        add(sums, observation, len(batch))
    return sums


def is_empty(iterator: Any) -> bool:
    """Say whether an iterator has nothing to iterate over, which Chainer's cannot bear."""
    dataset = getattr(iterator, "dataset", None)
    return dataset is not None and len(dataset) == 0


def _one_sweep(iterator: Any) -> Iterator[Any]:
    if hasattr(iterator, "reset"):
        iterator.reset()
        return iterator
    return copy.copy(iterator)


def _evaluate_custom(evaluator: Any) -> Sums:
    original = evaluator.get_iterator("main")
    if is_empty(original):
        return {}
    dataset = getattr(original, "dataset", None)
    counting = _CountingIterator(original)
    own = evaluator._iterators
    evaluator._iterators = {**own, "main": counting}
    try:
        # Of the evaluator itself, as it may keep something for the next time.
        result = type(evaluator).__base__.evaluate(evaluator)
    finally:
        evaluator._iterators = own
    sums: Sums = {}
    # Who takes no examples from the iterator may read its dataset.
    add(sums, result, sum(counting.counts) or (1 if dataset is None else len(dataset)))
    return sums


class _CountingIterator:
    """Passes everything on to an iterator and counts the examples."""

    def __init__(self, iterator: Any, counts: list[int] | None = None) -> None:
        self._iterator = iterator
        self.counts = [] if counts is None else counts
        """Of each batch; those of copies too."""

    def __copy__(self) -> _CountingIterator:
        return _CountingIterator(copy.copy(self._iterator), self.counts)

    def __iter__(self) -> _CountingIterator:
        return self

    def __next__(self) -> Any:
        batch = next(self._iterator)
        self.counts.append(len(batch))
        return batch

    next = __next__

    def __getattr__(self, name: str) -> Any:
        return getattr(self._iterator, name)
