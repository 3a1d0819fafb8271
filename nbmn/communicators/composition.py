"""Which backends a communicator is made of, by its name."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nbmn.communicators.backend import Backend, HostBackend
from nbmn.communicators.hierarchy import DummyBackend, HierarchicalBackend, TwoDimensionalBackend
from nbmn.communicators.link import Link
from nbmn.communicators.topology import locate, occupancy

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
    links: tuple[Link, ...] = ()
    """Beside the communicator's own."""


def check(name: str) -> None:
    """Raise ValueError if no communicator of this name can be had anywhere; local."""
    if not isinstance(name, str) or name not in NAMES:
        raise ValueError(f"unknown communicator {name!r}; there are {', '.join(NAMES)}")
    if name == "pure_nccl":
        raise ValueError(
            "communicator 'pure_nccl' cannot work here: it needs NCCL and a GPU for each rank, "
            "and this version of nbmn averages through host memory; use 'auto'"
        )


def check_here(name: str, hosts: Sequence[Hashable]) -> None:
    """Raise ValueError if a communicator cannot work on these hosts; the same on all ranks."""
    count = len(set(hosts))
    if name in ("single_node", "shared_memory") and count > 1:
        raise ValueError(
            f"communicator {name!r} cannot work here: it needs all ranks on one host, and they "
            f"are on {count}; use 'auto' or 'hierarchical'"
        )
    if name == "two_dimensional" and len(occupancy(hosts)) > 1:
        raise ValueError(
            "communicator 'two_dimensional' cannot work here: it needs equally many ranks on "
            "each host; use 'auto' or 'hierarchical'"
        )


def choose(hosts: Sequence[Hashable]) -> str:
    """Return the name of the fastest composition on these hosts; the same on all ranks."""
    occupied = occupancy(hosts)
    if occupied == {1}:
        return "flat"
    if len(set(hosts)) == 1:
        return "shared_memory"
    return "two_dimensional" if len(occupied) == 1 else "hierarchical"


def build(world: World, link: Link, hosts: Sequence[Hashable], name: str) -> Composition:
    """Make the backends; collective over ``link``."""
    kind = choose(hosts) if name == "auto" else name
    host = HostBackend(link)
    if kind == "dummy":
        return Composition(kind, DummyBackend(link), host)
    if kind in ("shared_memory", "single_node"):
        backend = on_one_host(link)
        return Composition(kind, backend, host)
    if kind in ("hierarchical", "two_dimensional"):
        place = locate(hosts, link.rank)
        within = world.split(link, place.inter_rank, place.intra_rank)
        assert within is not None
        if kind == "two_dimensional":
            between = world.split(link, place.intra_rank, place.inter_rank)
            backend = TwoDimensionalBackend(link, within, between)
        else:
            color = 0 if place.intra_rank == 0 else None
            between = world.split(link, color, place.inter_rank)
            backend = HierarchicalBackend(link, within, between, on_one_host(within))
        links = tuple(part for part in (within, between) if part is not None)
        return Composition(kind, backend, backend, links)
    return Composition(kind, host, host)


def on_one_host(link: Link) -> Backend:
    """Return the fastest backend among ranks of one host; collective over ``link``."""
    return HostBackend(link)
