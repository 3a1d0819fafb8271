"""Turns the batch normalization of a model multi-node."""

from __future__ import annotations

import copy
import warnings
from typing import TYPE_CHECKING, TypeVar

import chainer
from chainer.links import BatchNormalization

from nbmn.links.batch_normalization import MultiNodeBatchNormalization, check_backend

if TYPE_CHECKING:
    from nbmn.communicators import Communicator

_Link = TypeVar("_Link", bound=chainer.Link)


def create_mnbn_model(
    link: _Link, comm: Communicator, communication_backend: str = "auto"
) -> _Link:
    """Copy a model, with MultiNodeBatchNormalization for each BatchNormalization; local.

    Everything else is as in a deep copy: parameters, persistent values, hooks, names, and what
    occurs twice is still one link. A subclass of BatchNormalization that computes something else
    (such as BatchRenormalization) stays as it is, with a warning.

    Parameters
    ----------
    link
        A link, chain, chain list or sequential; it is left as it is.
    comm
        The ranks.
    communication_backend
        See :class:`MultiNodeBatchNormalization`.

    Raises
    ------
    ValueError
        There is no such backend, or the communicator does not use it.
    """
    check_backend(comm, communication_backend)
    return _Replacing(comm).of(copy.deepcopy(link))


class _Replacing:
    def __init__(self, comm: Communicator) -> None:
        self._comm = comm
        self._done: dict[int, chainer.Link] = {}
        # Ids are those of living objects.
        self._seen: list[chainer.Link] = []

    def of(self, link: chainer.Link) -> chainer.Link:
        """Return what takes the place of a link; its children are replaced in it."""
        if id(link) not in self._done:
            self._seen.append(link)
            self._done[id(link)] = self._replaced(link)
        return self._done[id(link)]

    def _replaced(self, link: chainer.Link) -> chainer.Link:
        if isinstance(link, BatchNormalization):
            return self._multi_node(link)
        if isinstance(link, chainer.Chain):
            for name in link._children:
                link.__dict__[name] = self.of(link.__dict__[name])
        elif isinstance(link, chainer.ChainList):
            link._children[:] = map(self.of, link._children)
            if isinstance(link, chainer.Sequential):
                link._layers[:] = [
                    self.of(layer) if isinstance(layer, chainer.Link) else layer
                    for layer in link._layers
                ]
        return link

    def _multi_node(self, link: BatchNormalization) -> chainer.Link:
        if isinstance(link, MultiNodeBatchNormalization):
            return link
        if type(link).forward is not BatchNormalization.forward:
            warnings.warn(
                f"{type(link).__name__} is no plain BatchNormalization and stays as it is: "
                "each rank normalizes by its own batch",
                stacklevel=2,
            )
            return link
        made = MultiNodeBatchNormalization.__new__(MultiNodeBatchNormalization)
        made.__dict__.update(link.__dict__)
        made.comm = self._comm
        return made
