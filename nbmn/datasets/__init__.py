"""Chainer's datasets, made multi-node."""

from nbmn.datasets.empty import create_empty_dataset
from nbmn.datasets.scatter import DataSizeError, scatter_dataset, scatter_index
from nbmn.datasets.shard import take

__all__ = [
    "DataSizeError",
    "create_empty_dataset",
    "scatter_dataset",
    "scatter_index",
    "take",
]
