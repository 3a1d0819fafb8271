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
    model = copy.deepcopy(link)
    for each in model.links():
        if isinstance(each, BatchNormalization):
            _make_multi_node(each, comm)
    return model


def _make_multi_node(link: BatchNormalization, comm: Communicator) -> None:
    if isinstance(link, MultiNodeBatchNormalization):
        return
    if type(link).forward is not BatchNormalization.forward:
        warnings.warn(
            f"{type(link).__name__} is no plain BatchNormalization and stays as it is: "
            "each rank normalizes by its own batch",
            stacklevel=3,
        )
        return
    # It stays the same object: a model may hold its links in other places than Chainer's too.
    link.__class__ = MultiNodeBatchNormalization
    link.comm = comm
