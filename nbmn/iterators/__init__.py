"""Chainer's iterators, made multi-node."""

from nbmn.iterators.multi_node import create_multi_node_iterator
from nbmn.iterators.synchronized import create_synchronized_iterator

__all__ = ["create_multi_node_iterator", "create_synchronized_iterator"]
