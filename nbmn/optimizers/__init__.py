"""Chainer's optimizers, made multi-node."""

from nbmn.optimizers.creation import create_multi_node_optimizer
from nbmn.optimizers.double_buffering import DoubleBufferingOptimizer
from nbmn.optimizers.multi_node import MultiNodeOptimizer

__all__ = ["DoubleBufferingOptimizer", "MultiNodeOptimizer", "create_multi_node_optimizer"]
