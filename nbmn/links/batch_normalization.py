"""A link that normalizes by the statistics of all ranks' batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import chainer
from chainer import Variable
from chainer.links import BatchNormalization

from nbmn.functions.batch_normalization import multi_node_batch_normalization
from nbmn.functions.graph import checked
from nbmn.links.held import HeldCommunicator

if TYPE_CHECKING:
    from nbmn.communicators import Communicator


class MultiNodeBatchNormalization(BatchNormalization):
    """``chainer.links.BatchNormalization`` over the batches of all ranks together.

    In training mode its call is collective, and so is its backward: outputs, gradients and running
    statistics are those of one rank with all examples, also where ranks have different
    numbers of them, or none. In test mode it is local. Parameters and persistent values have
    the names of Chainer's: snapshots fit both.

    Copies share the communicator; a pickle leaves it behind: set ``comm`` after unpickling.

    Parameters
    ----------
    size
        Shape of the channels, or their number; None to take it from the first input, with
        ``axis``.
    comm
        The ranks.
    decay
        How much of the running statistics remains in each step.
    eps
        Added to the variance.
    dtype
        Of parameters and running statistics; None for ``chainer.config.dtype``. Inputs may be of
        any float dtype; statistics are computed in float32 at least.
    use_gamma, use_beta
        Learn to scale, and to shift.
    initial_gamma, initial_beta
        Initializers; by default 1 and 0.
    communication_backend
        ``auto``, ``mpi`` or ``nccl``: which communicators will do. The communicator talks in its
        own best way whichever it is.
    axis
        Axes over which to normalize; by default all but those of the channels, from the second.

    Raises
    ------
    ValueError
        There is no such backend, or the communicator does not use it.
    """

    comm = HeldCommunicator()

    def __init__(
        self,
        size: int | tuple[int, ...] | None,
        comm: Communicator,
        decay: float = 0.9,
        eps: float = 2e-5,
        dtype: Any = None,
        use_gamma: bool = True,
        use_beta: bool = True,
        initial_gamma: Any = None,
        initial_beta: Any = None,
        communication_backend: str = "auto",
        *,
        axis: int | tuple[int, ...] | None = None,
    ) -> None:
        check_backend(comm, communication_backend)
        super().__init__(
            size, decay, eps, dtype, use_gamma, use_beta, initial_gamma, initial_beta, axis
        )
        self.comm = comm

    def forward(self, x: Any, finetune: bool = False) -> Variable:
        """Normalize.

        Parameters
        ----------
        x
            float, shape (batch, \\*channels, ...); the batch may be empty.
        finetune
            In training mode, let the running statistics be those of all inputs since
            ``start_finetuning``, each input weighing the same.

        Raises
        ------
        TypeError, ValueError
            On all ranks: the input of one does not fit.
        """
        if not chainer.config.train:
            return super().forward(x, finetune=finetune)
        comm = self.comm
        (x,) = checked(comm, type(self).__name__, (x,))
        if self.avg_mean is None:
            self._initialize_params(tuple(n for i, n in enumerate(x.shape) if i not in self.axis))
        decay = self.decay
        running = self.avg_mean, self.avg_var
        if chainer.config.in_recomputing:  # the same input again
            running = None, None
        elif finetune:
            self.N += 1
            decay = 1.0 - 1.0 / self.N
        gamma = self._get_gamma()[0] if self.gamma is None else self.gamma
        beta = self._get_beta()[0] if self.beta is None else self.beta
        return multi_node_batch_normalization(
            comm, x, gamma, beta, self.eps, *running, decay, self.axis
        )


def check_backend(comm: Communicator, name: str) -> None:
    """Raise ValueError unless the communicator can be said to use this backend."""
    if name not in ("auto", "mpi", "nccl"):
        raise ValueError(f"communication_backend must be 'auto', 'mpi' or 'nccl', not {name!r}")
    if name == "nccl" and comm.name != "pure_nccl":
        raise ValueError(
            "communication_backend='nccl' needs a 'pure_nccl' communicator, "
            f"not {comm.name!r}: use 'auto'"
        )
