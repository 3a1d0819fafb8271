"""Chainer's optimizers, made multi-node."""

from nbmn.optimizers.multi_node import MultiNodeOptimizer, create_multi_node_optimizer

__all__ = ["MultiNodeOptimizer", "create_multi_node_optimizer"]
