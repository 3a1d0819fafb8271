"""Decides which links to renew: pure functions on what the ranks report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from nbmn.communicators.agreement import digest
from nbmn.communicators.link import Uid


@dataclass(frozen=True, slots=True)
class LinkReport:
    """What one rank knows of one link."""

    uid: Uid
    members: tuple[int, ...]
    """World ranks, in the link's rank order."""
    alive: bool
    """Somebody on this rank still holds it."""
    broken: str | None = None
    abandoned: bool = False
    """This rank left an operation unfinished on it."""
    sequence: int = 0
    """Collectives this rank has begun."""
    messages: tuple[tuple[tuple[int, int], int], ...] = ()
    """((source, dest), sent minus received), of this rank."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What all ranks do, in this order."""

    renew: tuple[Uid, ...]
    lose: dict[Uid, str]
    """Links that some ranks no longer hold, and why the others must give them up."""
    free: tuple[Uid, ...]
    """MPI communicators that nobody needs and nobody left an operation on."""
    members: dict[Uid, tuple[int, ...]]


def checksum(reports: Iterable[LinkReport], world_rank: int) -> int:
    """Return this rank's summand of a sum that is 0 modulo 2**64 if all is in order.

    In order means: each link is held by all its ranks, they have begun equally many
    collectives, and every message sent was received.
    """
    total = 0
    for report in reports:
        word = digest((report.uid, report.sequence, report.alive))
        total += word * (len(report.members) - 1 if world_rank == report.members[0] else -1)
        for pair, count in report.messages:
            total += digest((report.uid, pair)) * count
    return total % 2**64


def make_plan(by_rank: Sequence[Sequence[LinkReport]]) -> Plan:
    """Decide from the reports of all world ranks; the same result on every rank."""
    found: dict[Uid, dict[int, LinkReport]] = {}
    for rank, reports in enumerate(by_rank):
        for report in reports:
            found.setdefault(report.uid, {})[rank] = report

    renew: list[Uid] = []
    lose: dict[Uid, str] = {}
    free: list[Uid] = []
    members: dict[Uid, tuple[int, ...]] = {}
    for uid in sorted(found):
        at = found[uid]
        members[uid] = next(iter(at.values())).members
        everywhere = set(at) == set(members[uid])
        clean = everywhere and not any(report.abandoned for report in at.values())
        gone = [r for r in members[uid] if r not in at or not at[r].alive]
        if gone:
            if len(gone) < len(members[uid]):
                lose[uid] = f"is no longer held by rank {', '.join(map(str, gone))}"
            dispose = clean
        elif _out_of_step(list(at.values())):
            renew.append(uid)
            dispose = clean
        else:
            dispose = False
        if dispose:
            free.append(uid)
    return Plan(tuple(renew), lose, tuple(free), members)


def _out_of_step(reports: list[LinkReport]) -> bool:
    if any(report.broken for report in reports):
        return True
    balance: Counter[tuple[int, int]] = Counter()
    for report in reports:
        balance.update(dict(report.messages))
    return len({report.sequence for report in reports}) > 1 or any(balance.values())
