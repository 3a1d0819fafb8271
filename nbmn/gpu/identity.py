"""What ranks tell each other before they use NCCL, and what follows from it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from nbmn.gpu.nccl import version_text
from nbmn.gpu.runtime import Gpu


@dataclass(frozen=True, slots=True)
class Identity:
    """One rank's device and software."""

    host: str
    uuid: str = ""
    nccl: int = 0
    runtime: str = ""
    problem: str | None = None
    """Why NCCL cannot be used there."""
    bus_id: str = ""
    """Of the GPU among those of the host."""


def identify(gpu: Gpu, host: str, device: int) -> Identity:
    """Return the identity of this rank, on a device; local."""
    runtime = gpu.runtime
    try:
        problem = gpu.problem()
        if problem is not None:
            return Identity(host, problem=problem)
        return Identity(
            host,
            runtime.uuid(device),
            gpu.nccl.version(),
            runtime.version(),
            bus_id=runtime.bus_id(device),
        )
    except RuntimeError as error:  # of the device; the other ranks wait to be told
        return Identity(host, problem=f"GPU {device} cannot be asked ({error})")


def odd_ones(identities: Sequence[Identity]) -> str | None:
    """Say which ranks differ from most in what must be alike; None if none do."""
    for what, values in (
        ("NCCL", [version_text(i.nccl) for i in identities]),
        ("device runtime", [i.runtime for i in identities]),
    ):
        ranks: defaultdict[str, list[int]] = defaultdict(list)
        for rank, value in enumerate(values):
            ranks[value].append(rank)
        if len(ranks) > 1:
            most = max(ranks, key=lambda value: len(ranks[value]))
            odd = "; ".join(
                f"{_named(some)} {'has' if len(some) == 1 else 'have'} {value}"
                for value, some in ranks.items()
                if value != most
            )
            return (
                f"the {what} is not the same on all ranks: {odd}; {_named(ranks[most])} "
                f"{'has' if len(ranks[most]) == 1 else 'have'} {most}"
            )
    return None


def reason_to_stage(identities: Sequence[Identity]) -> str | None:
    """Say why these ranks cannot talk by NCCL, though they could by host memory; or None."""
    for rank, identity in enumerate(identities):
        if identity.problem is not None:
            return f"rank {rank}: {identity.problem}"
    # Two containers of a machine, which are two hosts, may share a GPU: its UUID tells. Two parts
    # of a GPU (MIG) have two, and NCCL knows GPUs by their places on the bus.
    on: defaultdict[tuple[str, ...], list[int]] = defaultdict(list)
    for rank, identity in enumerate(identities):
        if identity.bus_id:
            on[identity.host, identity.bus_id].append(rank)
        if identity.uuid:
            on[(identity.uuid,)].append(rank)
    for ranks in on.values():
        if len(ranks) > 1:
            return f"{_named(ranks)} are on one GPU, and NCCL takes one rank on each"
    return None


def _named(ranks: Sequence[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
