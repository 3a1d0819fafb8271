"""A model whose parts are on different ranks."""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import chainer
from chainer import Variable

from nbmn import functions
from nbmn.functions.point_to_point_communication import receive
from nbmn.links.held import HeldCommunicator

if TYPE_CHECKING:
    from nbmn.communicators import Communicator


class Ends(NamedTuple):
    """Where the inputs of one part come from, and where its outputs go."""

    sources: tuple[int, ...] | None
    """None for the inputs of the model on this rank."""
    targets: tuple[int, ...] | None
    """None for its output on this rank."""


class MultiNodeChainList(chainer.ChainList):
    """This rank's parts of a model, and how they are connected to those on other ranks.

    A call runs the parts in the order in which they were added: each receives its inputs,
    computes, and sends its outputs. Backward goes through them in reverse, and the gradients
    take the messages' ways back. All ranks of the model call it, and call backward, together.

    Copies share the communicator; a pickle leaves it behind.

    Parameters
    ----------
    comm
        The ranks.
    """

    comm = HeldCommunicator()

    def __init__(self, comm: Communicator) -> None:
        super().__init__()
        self.comm = comm
        self._ends: list[Ends] = []

    def add_link(
        self,
        link: chainer.Link,
        rank_in: int | Sequence[int] | None = None,
        rank_out: int | Sequence[int] | None = None,
    ) -> None:
        """Add a part; local.

        Parameters
        ----------
        link
            Takes one argument for each rank of ``rank_in`` (a tuple where that sent a
            tuple), or the inputs of the model.
        rank_in
            Where its inputs come from, in this order; this rank stands for an earlier
            part. None for the inputs of the model.
        rank_out
            Where its output, a variable or tuple of variables, goes to, in this order; this rank
            stands for a later part. None for the output of the model, of which there is one
            at most.

        Raises
        ------
        TypeError, ValueError
            Not ranks of the communicator, or there is an output already.
        """
        ends = Ends(self._ranks("rank_in", rank_in), self._ranks("rank_out", rank_out))
        if ends.targets is None and any(known.targets is None for known in self._ends):
            raise ValueError("there is a part with rank_out=None already: a model has one output")
        super().add_link(link)
        self._ends.append(ends)

    def _ranks(self, name: str, given: int | Sequence[int] | None) -> tuple[int, ...] | None:
        if given is None:
            return None
        ranks = given if isinstance(given, (list, tuple)) else [given]
        try:
            ranks = tuple(map(operator.index, ranks))
        except TypeError:
            raise TypeError(f"{name} must be a rank, some ranks or None, not {given!r}") from None
        size = self.comm.size
        if not ranks or not all(0 <= rank < size for rank in ranks):
            raise ValueError(f"{name}={given!r} is not among the {size} ranks")
        return ranks

    def forward(self, *inputs: Any) -> Any:
        """Run the parts of this rank.

        Returns
        -------
        The output of the part with ``rank_out=None``, or where there is none an empty variable,
        from which backward must be called.

        Raises
        ------
        ValueError
            What one part of this rank gives another was not there, or was not taken.
        """
        run = _Run(self.comm)
        for link, ends in zip(self, self._ends, strict=True):
            run.part(link, ends, inputs)
        return run.result()


class _Run:
    """One call. ``_last`` stands for all that was computed so far: backward passes it too."""

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm
        self._last: Variable | None = None
        self._kept: deque[Any] = deque()
        self._output: Any = None

    def part(self, link: chainer.Link, ends: Ends, inputs: tuple[Any, ...]) -> None:
        if ends.sources is None:
            xs = self._after_last(inputs)
        else:
            xs = tuple(map(self._take, ends.sources))
        y = link(*xs)
        # What it gives goes on to what was before in any case: there may be no gradient of
        # its inputs, such as of indices.
        if ends.targets is None:
            self._output = self._after_last(y)
            self._reach(self._output)
        for target in ends.targets or ():
            self._give(self._after_last(y), target)

    def result(self) -> Any:
        if self._kept:
            raise ValueError(
                f"rank {self._comm.rank}: a part has rank_out={self._comm.rank}, but no later one "
                f"has rank_in={self._comm.rank} to take it"
            )
        return self._last if self._output is None else self._after_last(self._output)

    def _take(self, source: int) -> Any:
        if source != self._comm.rank:
            ys, self._last = receive(self._comm, source, self._last)
            return ys[0] if len(ys) == 1 else ys
        if not self._kept:
            raise ValueError(
                f"rank {source}: a part has rank_in={source}, but no earlier one has "
                f"rank_out={source} for it"
            )
        return self._after_last(self._kept.popleft())

    def _give(self, y: Any, target: int) -> None:
        if target != self._comm.rank:
            self._last = functions.send(y, self._comm, target)
        else:
            self._kept.append(y)
            self._reach(y)

    def _reach(self, y: Any) -> None:
        self._last = y[0] if isinstance(y, (tuple, list)) else y

    def _after_last(self, values: Any) -> Any:
        """Return values whose backward goes on from what was last."""
        if self._last is None or values is self._last:
            return values
        if isinstance(values, (tuple, list)):
            return functions.pseudo_connect(self._last, *values) if values else values
        return functions.pseudo_connect(self._last, values)[0]
