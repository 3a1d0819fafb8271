"""Differentiable collectives. All ranks call them in the same order, forward and backward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from chainer import Variable

from nbmn.functions.graph import Communication, checked

if TYPE_CHECKING:
    from nbmn.communicators import Communicator


def allgather(comm: Communicator, x: Any) -> tuple[Variable, ...]:
    """Return the arrays of all ranks in rank order; collective, and so is backward.

    Parameters
    ----------
    comm
        The ranks.
    x
        Variable or array. Shapes may differ between ranks, dtypes may not.

    Returns
    -------
    One variable for each rank. The gradient of ``x`` is the sum over ranks of the gradients of
    what each got of it; those of float16 are summed in float32. It can be differentiated twice.

    Raises
    ------
    TypeError, ValueError
        On all ranks: not an array, or dtypes differ.
    """
    return AllGather(comm).call(*checked(comm, "allgather", (x,)))


def alltoall(comm: Communicator, xs: Sequence[Any]) -> tuple[Variable, ...]:
    """Return what each rank has for this one, in rank order; collective, and so is backward.

    Parameters
    ----------
    comm
        The ranks.
    xs
        A variable or array for each rank. Shapes may differ, dtypes may not.

    Returns
    -------
    One variable from each rank. It can be differentiated twice.

    Raises
    ------
    TypeError, ValueError
        On all ranks: not arrays, not as many as ranks, or dtypes differ.
    """
    return AllToAll(comm).call(*checked(comm, "alltoall", xs))


def bcast(comm: Communicator, x: Any, root: int = 0) -> Variable:
    """Return the root's array; collective, and so is backward.

    Parameters
    ----------
    comm
        The ranks.
    x
        Variable or array of the root; what other ranks pass is ignored.
    root
        Its rank.

    Returns
    -------
    A variable on each rank. The gradient of the root's ``x`` is the sum of theirs; of float16
    it is summed in float32. It cannot be differentiated twice.

    Raises
    ------
    TypeError, ValueError
        On all ranks: the root's ``x`` is not an array, there is no such root, or the ranks
        name different ones.
    """
    return Bcast(comm, root).call(*(checked(comm, "bcast", (x,)) if comm.rank == root else ()))[0]


def gather(comm: Communicator, x: Any, root: int = 0) -> tuple[Variable, ...] | Variable:
    """Return the arrays of all ranks in rank order at the root; collective, as is backward.

    Parameters
    ----------
    comm
        The ranks.
    x
        Variable or array. Shapes may differ between ranks, dtypes may not.
    root
        Who receives them.

    Returns
    -------
    At the root a variable for each rank; elsewhere an empty one, from which backward must be
    called for the root's to end. It cannot be differentiated twice.

    Raises
    ------
    TypeError, ValueError
        On all ranks: not an array, no such root, or ranks differ in dtype or root.
    """
    ys = Gather(comm, root).call(*checked(comm, "gather", (x,)))
    return ys if comm.rank == root else ys[0]


def scatter(comm: Communicator, xs: Sequence[Any] | None, root: int = 0) -> Variable:
    """Return this rank's array of the root's; collective, and so is backward.

    Parameters
    ----------
    comm
        The ranks.
    xs
        At the root a variable or array for each rank; what other ranks pass is ignored. Shapes
        may differ, dtypes may not.
    root
        Its rank.

    Returns
    -------
    A variable on each rank. It cannot be differentiated twice.

    Raises
    ------
    TypeError, ValueError
        On all ranks: not arrays, not as many as ranks, dtypes differ, there is no such root, or
        the ranks name different ones.
    """
    given = () if xs is None or comm.rank != root else checked(comm, "scatter", xs)
    return Scatter(comm, root).call(*given)[0]


class AllGather(Communication):
    """Every rank's array, on every rank."""

    def exchange(self, xs: tuple[Any, ...]) -> tuple[Any, ...]:
        return self.comm.allgather(xs[0])

    def backward(self, target_input_indexes: Any, grad_outputs: Any) -> Any:
        return (*SumParts(self.comm).call(*self.filled(grad_outputs)), None)


class SumParts(Communication):
    """Of one array for each rank, the sum of those for this one: the adjoint of AllGather."""

    def exchange(self, xs: tuple[Any, ...]) -> tuple[Any, ...]:
        dtype = xs[0].dtype
        first, *others = self.comm.alltoall(xs)
        total = first.astype(np.float32 if dtype == np.float16 else dtype)
        for other in others:
            total += other
        return (total.astype(dtype, copy=False),)

    def backward(self, target_input_indexes: Any, grad_outputs: Any) -> Any:
        return (*AllGather(self.comm).call(*self.filled(grad_outputs)), None)


class AllToAll(Communication):
    """An array from every rank to every rank; its own adjoint."""

    def exchange(self, xs: tuple[Any, ...]) -> tuple[Any, ...]:
        return self.comm.alltoall(xs)

    def backward(self, target_input_indexes: Any, grad_outputs: Any) -> Any:
        return (*AllToAll(self.comm).call(*self.filled(grad_outputs)), None)


class AllReduce(Communication):
    """The sum of all ranks' arrays; its own adjoint."""

    def exchange(self, xs: tuple[Any, ...]) -> tuple[Any, ...]:
        return (self.comm.allreduce(xs[0]),)

    def backward(self, target_input_indexes: Any, grad_outputs: Any) -> Any:
        return (*AllReduce(self.comm).call(*self.filled(grad_outputs)), None)


class _Rooted(Communication):
    def __init__(self, comm: Communicator, root: int) -> None:
        super().__init__(comm)
        self.root = root

    @property
    def at_root(self) -> bool:
        return self.comm.rank == self.root


class Bcast(_Rooted):
    """The root's array; only the root has an input."""

    def exchange(self, xs: tuple[Any, ...]) -> tuple[Any, ...]:
        return (self.comm.bcast(xs[0] if self.at_root else None, self.root),)

    def send_back(self, gys: tuple[Any, ...]) -> tuple[Any, ...]:
        # Faster than to gather at the root, and no rank holds the gradients of all.
        total = self.comm.allreduce(gys[0])
        return (total,) if self.at_root else ()


class Gather(_Rooted):
    """Every rank's array at the root; elsewhere the output is empty."""

    def exchange(self, xs: tuple[Any, ...]) -> tuple[Any, ...]:
        ys = self.comm.gather(xs[0], self.root)
        return (xs[0].reshape(-1)[:0].copy(),) if ys is None else ys

    def send_back(self, gys: tuple[Any, ...]) -> tuple[Any, ...]:
        return (self.comm.scatter(gys if self.at_root else None, self.root),)


class Scatter(_Rooted):
    """An array of the root for every rank; only the root has inputs."""

    def exchange(self, xs: tuple[Any, ...]) -> tuple[Any, ...]:
        return (self.comm.scatter(xs if self.at_root else None, self.root),)

    def send_back(self, gys: tuple[Any, ...]) -> tuple[Any, ...]:
        return self.comm.gather(gys[0], self.root) or ()
