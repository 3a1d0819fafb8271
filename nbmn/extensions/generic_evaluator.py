"""Evaluates what cannot be averaged: the results of all ranks meet at one."""

from __future__ import annotations

import copy
import itertools
from typing import TYPE_CHECKING, Any

import chainer
from chainer.dataset import convert
from chainer.training import extension
from chainer.utils import argument

from nbmn.extensions.evaluator import is_empty
from nbmn.extensions.together import together

if TYPE_CHECKING:
    from chainer.training import Trainer

    from nbmn.communicators import Communicator

_NAME = "GenericMultiNodeEvaluator"


class GenericMultiNodeEvaluator(extension.Extension):
    """Computes something of each batch on each rank, and something of all that at the root.

    Override :meth:`calc_local` and :meth:`aggregate`. Ranks may have any number of batches, none
    included. Nothing is reported, unless ``aggregate`` does.

    Parameters
    ----------
    comm
        The ranks; None for this process alone. Calling the evaluator is collective over them; an
        exception on one rank is an error on all.
    iterator
        This rank's examples; must not repeat.
    target
        What :meth:`calc_local` calls, unless it is overridden.
    device
        Where ``converter`` sends a batch.
    converter
        Makes arrays of a batch: a tuple or dict of them become arguments.
    root
        The rank at which :meth:`aggregate` is called.
    progress_hook
        Called at the root with each of its batches.
    """

    trigger = 1, "epoch"
    default_name = "validation"
    priority = extension.PRIORITY_WRITER
    name = None

    def __init__(
        self,
        comm: Communicator | None,
        iterator: Any,
        target: Any,
        device: Any = None,
        converter: Any = convert.concat_examples,
        root: int = 0,
        **kwargs: Any,
    ) -> None:
        (self._progress_hook,) = argument.parse_kwargs(kwargs, ("progress_hook", None))
        size = 1 if comm is None else comm.size
        if not 0 <= root < size:
            raise ValueError(f"root {root} is not among the {size} ranks")
        self.comm = comm
        self.iterator = iterator
        self._targets = {"main": target}
        self.device = None if device is None else chainer.get_device(device)
        self.converter = converter
        self.root = root

    def __call__(self, trainer: Trainer | None = None) -> Any:
        """Return what :meth:`aggregate` returns at the root, None elsewhere; collective.

        Raises
        ------
        TypeError
            On all ranks: ``calc_local`` returned None, or what cannot be pickled.
        Exception
            On all ranks: ``calc_local`` or ``aggregate`` raised it.
        """
        comm = self.comm
        if comm is None:
            return self.aggregate(self._evaluate_local(hook=self._progress_hook))
        at_root = comm.rank == self.root
        with together(comm, f"{_NAME}.calc_local"):
            mine = self._evaluate_local(self._progress_hook if at_root else None)
        everyone = comm.gather_obj(mine, root=self.root)
        result = None
        with together(comm, f"{_NAME}.aggregate"):
            if at_root:
                result = self.aggregate(by_rounds(everyone))
        return result

    def calc_local(self, *args: Any, **kwargs: Any) -> Any:
        """Return something of one batch, not None; local. By default what the target returns."""
        return self._targets["main"](*args, **kwargs)

    def aggregate(self, results: list[Any]) -> Any:
        """Return something of all results; called once, at the root.

        Parameters
        ----------
        results
            What ``calc_local`` returned for each rank's first batch, in rank order, then for
            each rank's second one, and so on. By default they are returned as they are.
        """
        return results

    def _evaluate_local(self, hook: Any) -> list[Any]:
        if is_empty(self.iterator):
            return []
        if hasattr(self.iterator, "reset"):
            self.iterator.reset()
            iterator = self.iterator
        else:
            iterator = copy.copy(self.iterator)
        results = []
        for batch in iterator:
            inputs = convert._call_converter(self.converter, batch, self.device)
            with chainer.no_backprop_mode():
                if isinstance(inputs, tuple):
                    result = self.calc_local(*inputs)
                elif isinstance(inputs, dict):
                    result = self.calc_local(**inputs)
                else:
                    result = self.calc_local(inputs)
            if result is None:
                raise TypeError("calc_local must return something, but returned None")
            results.append(result)
            if hook:
                hook(batch)
        return results


def by_rounds(everyone: list[list[Any]]) -> list[Any]:
    """Order results by batch, then by rank; a rank that has no more batches is left out."""
    absent = object()
    rounds = itertools.zip_longest(*everyone, fillvalue=absent)
    return [result for results in rounds for result in results if result is not absent]
