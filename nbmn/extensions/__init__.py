"""Chainer's trainer extensions, made multi-node."""

from nbmn.extensions.aggregator import ObservationAggregator
from nbmn.extensions.checkpointer import create_multi_node_checkpointer
from nbmn.extensions.early_stopping import MultiNodeEarlyStoppingTrigger
from nbmn.extensions.evaluator import create_multi_node_evaluator
from nbmn.extensions.generic_evaluator import GenericMultiNodeEvaluator
from nbmn.extensions.persistent import AllreducePersistent
from nbmn.extensions.snapshot import multi_node_snapshot

__all__ = [
    "AllreducePersistent",
    "GenericMultiNodeEvaluator",
    "MultiNodeEarlyStoppingTrigger",
    "ObservationAggregator",
    "create_multi_node_checkpointer",
    "create_multi_node_evaluator",
    "multi_node_snapshot",
]
