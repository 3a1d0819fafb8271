"""Chainer functions that talk to other ranks; backward passes send the gradients back."""

from nbmn.functions.collective_communication import allgather, alltoall, bcast, gather, scatter
from nbmn.functions.point_to_point_communication import recv, send
from nbmn.functions.pseudo_connect import pseudo_connect

__all__ = [
    "allgather",
    "alltoall",
    "bcast",
    "gather",
    "pseudo_connect",
    "recv",
    "scatter",
    "send",
]
