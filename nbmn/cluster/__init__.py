"""The notebook side: start, run, watch and stop ranks, on ipyparallel."""

from nbmn.cluster.errors import (
    ClusterError,
    NoRanksError,
    RanksFailed,
    RanksInterrupted,
    RanksStuck,
    StartError,
)
from nbmn.cluster.launch import Plan
from nbmn.cluster.session import Session
from nbmn.cluster.starting import start

__all__ = [
    "ClusterError",
    "NoRanksError",
    "Plan",
    "RanksFailed",
    "RanksInterrupted",
    "RanksStuck",
    "Session",
    "StartError",
    "start",
]
