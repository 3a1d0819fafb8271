"""Which ranks share a host."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Topology:
    """Where one rank stands among hosts."""

    intra_rank: int
    """Among the ranks of its host."""
    intra_size: int
    """Ranks on its host."""
    inter_rank: int
    """Of its host among hosts, in the order of their lowest ranks."""
    inter_size: int
    """Hosts."""


def host_identity() -> str:
    """Return what is equal for two processes exactly if they run on one host; local."""
    # Containers on different machines may carry the same name.
    boot = Path("/proc/sys/kernel/random/boot_id")
    return f"{socket.gethostname()} {boot.read_text().strip() if boot.exists() else ''}"


def locate(hosts: Sequence[Hashable], rank: int) -> Topology:
    """Place ``rank``, given the host of each rank."""
    order = list(dict.fromkeys(hosts))
    here = [r for r, host in enumerate(hosts) if host == hosts[rank]]
    return Topology(here.index(rank), len(here), order.index(hosts[rank]), len(order))


def occupancy(hosts: Sequence[Hashable]) -> set[int]:
    """Return the numbers of ranks that hosts have."""
    return set(Counter(hosts).values())
