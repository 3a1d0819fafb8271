"""Chainer's trainer extensions, made multi-node."""

from nbmn.extensions.evaluator import create_multi_node_evaluator

__all__ = ["create_multi_node_evaluator"]
