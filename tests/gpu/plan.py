"""What is checked on a GPU, and together with what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

SHARDS = 12
"""Processes among which the many calls of Chainer are dealt out."""


@dataclass(frozen=True, slots=True)
class Check:
    """One module's ``run``, in a process of its own or on ranks of their own."""

    name: str
    module: str
    arguments: tuple[str, ...] = ()
    ranks: int = 0
    """0 for no launcher."""
    weight: float = 30.0
    """Seconds that it should take, about; by these the time is shared out."""
    environment: tuple[tuple[str, str], ...] = ()


SHARED = (("NCCL_MULTI_RANK_GPU_ENABLE", "1"),)
"""Asks NCCL to let two ranks share a GPU."""

Round = tuple[Check, ...]
"""Checks that run at the same time; what measures runs alone."""

ROUNDS: tuple[Round, ...] = (
    (
        Check("collectives", "check_collectives"),
        Check("staged-2-ranks", "check_staging", ranks=2, weight=60),
        Check("staged-4-ranks", "check_staging", ranks=4, weight=60),
        Check("wire-dtypes", "check_wire_dtypes"),
        Check("cuda-aware-mpi", "check_cuda_aware", ranks=2, weight=110),
        Check("driver", "check_driver"),
    ),
    (
        *(
            Check(
                f"chainer-calls-{n + 1}", "check_chainer_calls", (str(n), str(SHARDS)), weight=120
            )
            for n in range(SHARDS)
        ),
        Check("gradients", "check_gradients", weight=60),
    ),
    (Check("interrupt", "check_interrupt"),),
    (Check("renewal", "check_renewal", weight=40),),
    (Check("nccl-2-ranks", "check_nccl_ranks", ranks=2, weight=30, environment=SHARED),),
    (Check("death", "check_death", weight=30, environment=SHARED),),
    (Check("memory", "check_memory"),),
    (Check("training-step", "check_training_step", weight=100),),
    (Check("packing", "check_packing", weight=90),),
    (Check("convolution-cost", "check_convolution_cost", weight=30),),
    (Check("out-of-memory", "check_out_of_memory", weight=25),),
)


def names() -> list[str]:
    return [check.name for checks in ROUNDS for check in checks]


def chosen(only: Sequence[str] | None) -> tuple[Round, ...]:
    """Return the rounds, with the named checks alone."""
    rounds = (tuple(c for c in checks if only is None or c.name in only) for checks in ROUNDS)
    return tuple(checks for checks in rounds if checks)
