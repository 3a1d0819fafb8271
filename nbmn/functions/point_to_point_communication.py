"""Differentiable messages: what one rank sends is an input of its graph on another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from chainer import Variable, backend

from nbmn.communicators import MismatchError
from nbmn.functions.graph import Communication, empty, variables

if TYPE_CHECKING:
    from nbmn.communicators import Communicator


def send(x: Any | Sequence[Any], communicator: Communicator, rank: int, tag: int = 0) -> Variable:
    """Send arrays to a rank, which must call :func:`recv`; backward receives the gradients.

    Local, returns when they are being received.

    Parameters
    ----------
    x
        A variable or array, or a tuple or list of them.
    communicator
        The ranks.
    rank
        Where to.
    tag
        Tells messages apart; from 0 to 32767.

    Returns
    -------
    An empty variable that stands for what was sent: call backward from it, or pass it as
    ``delegate_variable`` to what comes after. It cannot be differentiated twice.

    Raises
    ------
    TypeError
        Here and at ``rank``: not arrays.
    ValueError
        Only here: there is no other rank ``rank``, or no such tag. In backward: the gradients that
        come are not those of what was sent.
    CollectiveTimeoutError
        Here or in backward: the other rank does not come within the communicator's ``timeout``,
        or the ranks wait for each other. It shows the lines in which both are.
    """
    xs = x if isinstance(x, (tuple, list)) else (x,)
    try:
        xs = variables(xs)
    except TypeError:
        # Tells the other rank, which waits for it, and raises here.
        contents = tuple(x.array if isinstance(x, Variable) else x for x in xs)
        communicator.send(contents, rank, tag)
        raise
    return Send(communicator, rank, tag).call(*xs)[0]


def recv(
    communicator: Communicator,
    rank: int,
    delegate_variable: Variable | None = None,
    tag: int = 0,
    force_tuple: bool = False,
) -> Variable | tuple[Variable, ...]:
    """Return what a rank sends by :func:`send`; backward sends the gradients to it.

    Local.

    Parameters
    ----------
    communicator
        The ranks.
    rank
        Where from.
    delegate_variable
        What stands for this rank's graph up to here, if that is not connected otherwise: backward
        goes on from it when the gradients are sent.
    tag
        Of the message.
    force_tuple
        Return a tuple even if one array was sent.

    Returns
    -------
    A variable, or a tuple if several arrays were sent. It cannot be differentiated twice.

    Raises
    ------
    TypeError
        What was to be sent were not arrays.
    ValueError
        There is no other rank ``rank``, or no such tag.
    CollectiveTimeoutError
        As for :func:`send`.
    """
    ys, _ = receive(communicator, rank, delegate_variable, tag)
    return ys[0] if len(ys) == 1 and not force_tuple else ys


def receive(
    communicator: Communicator, rank: int, delegate_variable: Variable | None, tag: int = 0
) -> tuple[tuple[Variable, ...], Variable]:
    """Like :func:`recv`; return a tuple always, and an empty variable that stands for it."""
    before = () if delegate_variable is None else (delegate_variable,)
    *ys, delegate = Recv(communicator, rank, tag).call(*before)
    delegate.name = "delegate_variable"
    return tuple(ys), delegate


class _Message(Communication):
    def __init__(self, comm: Communicator, rank: int, tag: int) -> None:
        super().__init__(comm)
        self.rank_of_peer = rank
        self.tag = tag


class Send(_Message):
    """The output is empty."""

    @property
    def label(self) -> str:
        return f"send to rank {self.rank_of_peer}"

    def call(self, *xs: Any) -> tuple[Variable, ...]:
        (delegate,) = super().call(*xs)
        delegate.name = "delegate_variable"
        return (delegate,)

    def exchange(self, xs: tuple[Any, ...]) -> tuple[Any, ...]:
        self._sent = [(x.shape, x.dtype) for x in xs]
        self.comm.send(_single(xs), self.rank_of_peer, self.tag)
        return (empty(backend.get_array_module(*xs)),)

    def send_back(self, gys: tuple[Any, ...]) -> tuple[Any, ...]:
        got = self.comm.recv(self.rank_of_peer, self.tag)
        gxs = got if isinstance(got, tuple) else (got,)
        forms = [(gx.shape, gx.dtype) for gx in gxs]
        if forms != self._sent:
            raise MismatchError(
                f"rank {self.comm.rank} sent {_written(self._sent)} to rank {self.rank_of_peer} "
                f"and got {_written(forms)} for their gradients: the ranks' backward passes "
                "differ in their order; see nbmn.functions.pseudo_connect"
            )
        return gxs


class Recv(_Message):
    """The input is what was before; one more output, empty, stands for all others."""

    @property
    def label(self) -> str:
        return f"recv from rank {self.rank_of_peer}"

    def exchange(self, xs: tuple[Any, ...]) -> tuple[Any, ...]:
        self._before = [(x.shape, x.dtype, backend.get_array_module(x)) for x in xs]
        got = self.comm.recv(self.rank_of_peer, self.tag)
        ys = got if isinstance(got, tuple) else (got,)
        return (*ys, empty(backend.get_array_module(*ys)))

    def send_back(self, gys: tuple[Any, ...]) -> tuple[Any, ...]:
        self.comm.send(_single(gys[:-1]), self.rank_of_peer, self.tag)
        return tuple(xp.zeros(shape, dtype) for shape, dtype, xp in self._before)


def _single(xs: tuple[Any, ...]) -> Any:
    return xs[0] if len(xs) == 1 else xs


def _written(forms: Sequence[tuple[tuple[int, ...], np.dtype]]) -> str:
    return ", ".join(f"{dtype}{list(shape)}" for shape, dtype in forms) or "nothing"
