"""Makes an optimizer multi-node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmn.optimizers.double_buffering import DoubleBufferingOptimizer
from nbmn.optimizers.multi_node import MultiNodeOptimizer

if TYPE_CHECKING:
    from chainer import Optimizer

    from nbmn.communicators import Communicator


def create_multi_node_optimizer(
    actual_optimizer: Optimizer,
    communicator: Communicator,
    double_buffering: bool = False,
    zero_fill: bool = True,
) -> MultiNodeOptimizer:
    """Make an optimizer data-parallel over the ranks of a communicator; local.

    Parameters
    ----------
    actual_optimizer
        Any Chainer optimizer. If it is set up already, ``setup`` need not be called again.
    communicator
        Averages the gradients.
    double_buffering
        Average the gradients of each step while the next ones are computed, and apply them one
        update later; see :class:`DoubleBufferingOptimizer`. With every communicator.
    zero_fill
        Give initialised parameters that no rank used a gradient of zeros (True), or leave
        their gradients None (False).
    """
    kind = DoubleBufferingOptimizer if double_buffering else MultiNodeOptimizer
    return kind(actual_optimizer, communicator, zero_fill)
