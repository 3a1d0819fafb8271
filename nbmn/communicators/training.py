"""What training needs of a communicator: models, gradients, shares of data, agreement."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from nbmn.communicators import models, scattering
from nbmn.communicators.activity import collective
from nbmn.communicators.agreement import agree, any_of
from nbmn.communicators.group import Group
from nbmn.communicators.transport import CHUNK

if TYPE_CHECKING:
    from chainer import Link as Model

    from nbmn.communicators.background import Background


class Training(Group):
    """Part of :class:`Communicator`; every method is collective."""

    @collective
    def bcast_data(self, model: Model) -> None:
        """Give the model the values that it has on rank 0.

        Parameters that rank 0 has not initialised come from the lowest rank that has;
        they are initialised where they are not.

        Raises
        ------
        MismatchError
            On all ranks: the parameters differ in name, shape or dtype.
        """
        self._broadcast(model)

    def broadcast_data(self, model: Model) -> None:
        """The older name of :meth:`bcast_data`."""
        self.bcast_data(model)

    @collective
    def multi_node_mean_grad(self, model: Model, zero_fill: bool = False) -> None:
        """Replace each gradient of the model by its mean over ranks.

        Beforehand each is rounded to the configuration's ``allreduce_grad_dtype``, if there is
        one. A gradient that is None on some ranks counts as zero there, and all ranks get the
        mean. float16 is averaged in float32 and rounded once.

        Parameters
        ----------
        model
            With the same parameters on all ranks.
        zero_fill
            What to do with gradients that are None on all ranks: leave them (False), or
            make them zeros (True). Parameters of integers, and those that are not initialised,
            are left.

        Raises
        ------
        MismatchError
            On all ranks: the parameters differ in name, shape or dtype, or some are initialised
            on some ranks only.
        TypeError
            On all ranks: a gradient is of integers.
        """
        self._average(model, models.Terms(zero_fill, wire=self._wire))

    def allreduce_grad(self, model: Model, zero_fill: bool = False) -> None:
        """The older name of :meth:`multi_node_mean_grad`."""
        self.multi_node_mean_grad(model, zero_fill)

    @collective
    def replace_data(self, model: Model) -> bool:
        """Like :meth:`bcast_data`; return whether a value this rank had was a different one."""
        return self._broadcast(model)

    @collective
    def average_gradients(
        self,
        model: Model,
        zero_fill: bool,
        *,
        stale: bool = False,
        share: models.Share | None = None,
    ) -> models.Averaged:
        """Like :meth:`multi_node_mean_grad`, for optimizers.

        Parameters
        ----------
        stale
            This rank's parameters are not those that were last broadcast: nothing is averaged on
            any rank, and STALE returned on all.
        share
            Whose gradients count; None for all ranks'.
        """
        return self._average(model, models.Terms(zero_fill, stale, share, True, self._wire))

    def in_background(self) -> Background:
        """Make what averages gradients while this rank goes on computing."""
        from nbmn.communicators.background import Background

        return Background(self)  # type: ignore[arg-type] # the class of which this is a part

    def _average(self, model: Model, terms: models.Terms) -> models.Averaged:
        gradients = models.collect(model, terms.zero_fill)
        self.track.describe(*gradients.size())
        return models.average(self._link, self._parts.gradients, gradients, terms)

    def _broadcast(self, model: Model) -> bool:
        parts = self._parts
        return models.broadcast(self._link, parts.gradients, parts.gpu.runtime, model)

    @collective
    def count_ranks(self, counts: bool) -> models.Share:
        """Return on how many ranks ``counts`` is true."""
        return models.count_ranks(self._link, counts)

    @collective
    def scatter_parts(
        self,
        operation: str,
        make: Callable[[], Sequence[Callable[[], Any]]],
        root: int = 0,
        max_buf_len: int = CHUNK,
        remedy: str = "",
    ) -> Any:
        """Return this rank's part of what the root makes.

        Parameters
        ----------
        operation
            Its name in errors.
        make
            Called at the root; returns one function per rank, each of which makes a part.
        max_buf_len
            Longest single message in bytes.
        remedy
            What the error says to do about a part that cannot be pickled.

        Raises
        ------
        Exception
            On all ranks: the root cannot make a part, or it cannot be pickled.
        """
        return scattering.scatter(self._link, operation, make, root, max_buf_len, remedy)

    @collective
    def agree(self, operation: str, statement: Any = None, error: Exception | None = None) -> None:
        """Return if no rank has an error and all make the same (hashable) statement.

        Raises
        ------
        MismatchError
            On all ranks: the statements differ.
        Exception
            On all ranks: the error of the lowest rank that has one.
        """
        agree(self._link, operation, statement, error)

    @collective
    def any_rank(self, flag: bool) -> bool:
        """Say whether ``flag`` is true on any rank."""
        return any_of(self._link, "any_rank", flag)

    @property
    def _wire(self) -> str | None:
        dtype = self._config.get("allreduce_grad_dtype")
        return None if dtype is None else dtype.name
