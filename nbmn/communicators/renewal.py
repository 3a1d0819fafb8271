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
    """MPI communicators that nobody needs, and on which nothing is under way."""
    members: dict[Uid, tuple[int, ...]]


def checksum(reports: Iterable[LinkReport], world_rank: int) -> int:
    """Return this rank's summand of a sum that is 0 modulo 2**64 if all is in order.

    In order means: each link is held by all its ranks, they have begun equally many
    collectives, and every message sent was received; or by none of them.
    """
    total = 0
    for report in reports:
        word = digest((report.uid, report.sequence if report.alive else 0, report.alive))
        total += word * (len(report.members) - 1 if world_rank == report.members[0] else -1)
        for pair, count in report.messages if report.alive else ():
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
        # What was sent and never received waits inside MPI, and would be received by whoever
        # is given the context of a communicator that was freed.
        clean = (
            everywhere
            and not any(report.abandoned for report in at.values())
            and in_step(list(at.values()))
        )
        gone = [r for r in members[uid] if r not in at or not at[r].alive]
        if gone:
            if len(gone) < len(members[uid]):
                lose[uid] = f"is no longer held by rank {', '.join(map(str, gone))}"
            dispose = clean
        elif not in_step(list(at.values())) or any(report.broken for report in at.values()):
            renew.append(uid)
            dispose = clean
        else:
            dispose = False
        if dispose:
            free.append(uid)
    return Plan(tuple(renew), lose, tuple(free), members)


def in_step(reports: Sequence[LinkReport]) -> bool:
    """Whether the ranks of a link began equally many collectives and received every message."""
    balance: Counter[tuple[int, int]] = Counter()
    for report in reports:
        balance.update(dict(report.messages))
    return len({report.sequence for report in reports}) == 1 and not any(balance.values())
