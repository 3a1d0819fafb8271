"""A stacked RNN whose hidden states come from, and go to, other ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import chainer
from chainer import Variable
from chainer.links.rnn.n_step_rnn import NStepRNNBase

from nbmn import functions
from nbmn.links.held import HeldCommunicator

if TYPE_CHECKING:
    from nbmn.communicators import Communicator


def create_multi_node_n_step_rnn(
    actual_link: NStepRNNBase,
    communicator: Communicator,
    rank_in: int | None = None,
    rank_out: int | None = None,
) -> MultiNodeNStepRNN:
    """Let an RNN take its initial states from one rank and give its final ones to another; local.

    Parameters
    ----------
    actual_link
        One of Chainer's NStepRNN, NStepGRU, NStepLSTM, or of those in two directions; it is not
        copied.
    communicator
        The ranks.
    rank_in
        Whose final states are the initial ones; None for zeros.
    rank_out
        Who gets the final states; None for nobody.

    Returns
    -------
    A link that is called with the sequences, without states, and returns what
    ``actual_link`` does and one more: an empty variable, from which backward must be called if
    nothing else leads to it, or None without ``rank_out``.

    Raises
    ------
    ValueError
        It is no such link.
    """
    if not isinstance(actual_link, NStepRNNBase):
        name = type(actual_link).__name__
        raise ValueError(f"takes one of chainer.links.NStep(Bi)RNN, GRU or LSTM, not {name}")
    return MultiNodeNStepRNN(actual_link, communicator, rank_in, rank_out)


class MultiNodeNStepRNN(chainer.Chain):
    """Made by :func:`create_multi_node_n_step_rnn`."""

    communicator = HeldCommunicator()

    def __init__(
        self,
        link: NStepRNNBase,
        communicator: Communicator,
        rank_in: int | None,
        rank_out: int | None,
    ) -> None:
        super().__init__(actual_rnn=link)
        self.communicator = communicator
        self.rank_in = rank_in
        self.rank_out = rank_out
        self.n_cells = link.n_cells

    def forward(self, *inputs: Any) -> tuple[Any, ...]:
        outputs = self.actual_rnn(*self._receive(), *inputs)
        return (*outputs, self._send(outputs[: self.n_cells]))

    # The gradients come back in reverse order: each message's graph follows the one before.

    def _receive(self) -> list[Variable | None]:
        cells: list[Variable | None] = [None] * self.n_cells
        if self.rank_in is not None:
            last = None
            for i in range(self.n_cells):
                cells[i] = last = functions.recv(self.communicator, self.rank_in, last)
        return cells

    def _send(self, cells: tuple[Variable, ...]) -> Variable | None:
        last = None
        if self.rank_out is not None:
            for cell in cells:
                (cell,) = functions.pseudo_connect(last, cell)
                last = functions.send(cell, self.communicator, self.rank_out)
        return last
