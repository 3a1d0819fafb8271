"""Which backends a communicator is made of, by its name."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nbmn.communicators import cuda_aware
from nbmn.communicators.backend import Backend, HostBackend
from nbmn.communicators.carriers import Carrier
from nbmn.communicators.device_backend import DeviceBackend
from nbmn.communicators.hierarchy import (
    DummyBackend,
    HierarchicalBackend,
    TwoDimensionalBackend,
)
from nbmn.communicators.link import Link
from nbmn.communicators.mpi_carrier import MpiCarrier
from nbmn.communicators.nccl_carrier import NcclCarrier
from nbmn.communicators.topology import locate, occupancy
from nbmn.communicators.window import SharedMemoryBackend
from nbmn.gpu.runtime import Gpu

if TYPE_CHECKING:
    from nbmn.communicators.world import World

NAMES = (
    "auto",
    "dummy",
    "flat",
    "hierarchical",
    "naive",
    "non_cuda_aware",
    "pure_nccl",
    "shared_memory",
    "single_node",
    "two_dimensional",
)


@dataclass(frozen=True, slots=True)
class Composition:
    """What a communicator works with."""

    kind: str
    """The name it goes by; what ``auto`` has become."""
    gradients: Backend
    """Averages gradients and broadcasts parameters."""
    arrays: Backend
    """Sums arrays."""
    gpu: Gpu
    """By what it uses devices."""
    links: tuple[Link, ...] = ()
    """Beside the communicator's own."""


def check(name: str, gpu: Gpu) -> None:
    """Raise ValueError if no communicator of this name can be had in this process; local."""
    if not isinstance(name, str) or name not in NAMES:
        raise ValueError(f"unknown communicator {name!r}; there are {', '.join(NAMES)}")
    if name == "pure_nccl" and (problem := gpu.problem()) is not None:
        raise ValueError(
            "communicator 'pure_nccl' cannot work here: it needs NCCL and a GPU for each rank, "
            f"and {problem}; use 'auto'"
        )


def check_here(name: str, hosts: Sequence[Hashable]) -> None:
    """Raise ValueError if a communicator cannot work on these hosts; the same on all ranks."""
    count = len(set(hosts))
    if name in ("single_node", "shared_memory") and count > 1:
        raise ValueError(
            f"communicator {name!r} cannot work here: it needs all ranks on one host, and they "
            f"are on {count}; use 'auto' or 'hierarchical'"
        )


def choose(hosts: Sequence[Hashable]) -> str:
    """Return the name of the fastest composition on these hosts; the same on all ranks."""
    occupied = occupancy(hosts)
    if occupied == {1}:
        return "flat"
    if len(set(hosts)) == 1:
        return "shared_memory"
    return "two_dimensional"


def build(world: World, link: Link, hosts: Sequence[Hashable], name: str, gpu: Gpu) -> Composition:
    """Make the backends; collective over ``link``."""
    if name == "dummy":
        return Composition(name, DummyBackend(link), HostBackend(link), gpu)
    anywhere = name in ("auto", "pure_nccl")
    kind = choose(hosts) if anywhere else name
    host, links = _on_host(world, link, hosts, kind, calibrate=name == "auto")
    carrier: Carrier | None = None
    if anywhere:
        carrier = NcclCarrier(link, gpu)
    elif name in ("flat", "naive") and len(set(hosts)) == 1:
        # What is tried on one host says nothing of several.
        carrier = MpiCarrier(link, gpu, cuda_aware.refusal)
    backend = DeviceBackend(link, host, gpu.runtime, carrier)
    return Composition(name if name == "pure_nccl" else kind, backend, backend, gpu, links)


def _on_host(
    world: World, link: Link, hosts: Sequence[Hashable], kind: str, *, calibrate: bool
) -> tuple[Backend, tuple[Link, ...]]:
    """Make what averages in host memory, and the links that it has of its own."""
    if kind not in ("shared_memory", "single_node", "hierarchical", "two_dimensional"):
        return HostBackend(link), ()
    if len(set(hosts)) > 1:
        return _over_hosts(world, link, hosts, kind)
    return SharedMemoryBackend(link, calibrate=calibrate), ()


def _over_hosts(
    world: World, link: Link, hosts: Sequence[Hashable], kind: str
) -> tuple[Backend, tuple[Link, ...]]:
    make, most = {
        "hierarchical": (HierarchicalBackend, 1),
        "two_dimensional": (TwoDimensionalBackend, link.size),
    }[kind]
    occupied = occupancy(hosts)
    shards = min(most, *occupied)
    place = locate(hosts, link.rank)
    within = world.split(link, place.inter_rank, place.intra_rank)
    assert within is not None
    carries = place.intra_rank < shards
    between = world.split(link, place.intra_rank if carries else None, place.inter_rank)
    mates = [rank for rank, host in enumerate(hosts) if host == hosts[link.rank]]
    backend = make(link, mates, shards, within, between, even=len(occupied) == 1)
    return backend, (within,) if between is None else (within, between)
