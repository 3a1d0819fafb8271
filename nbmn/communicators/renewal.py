"""Decides what becomes of the links in a renewal: pure functions on what the ranks report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from nbmn.communicators.agreement import digest
from nbmn.communicators.calls import Kind, Signature
from nbmn.communicators.joining import fit, join
from nbmn.communicators.ledger import Past
from nbmn.communicators.link import Uid


@dataclass(frozen=True, slots=True)
class LinkReport:
    """What one rank knows of one link."""

    uid: Uid
    alive: bool
    """Somebody on this rank still holds it."""
    broken: bool = False
    """An operation on it was left, or is under way."""
    begun: int = 0
    """Collectives this rank has begun."""
    digest: int = 0
    """Of these, in what must be alike on all ranks."""
    settled: int = 0
    """How many of these, from the first, are complete here."""
    sent: tuple[int, ...] = ()
    """Messages to each of its ranks."""
    received: tuple[int, ...] = ()
    """Messages from each of its ranks."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What all ranks do, in this order."""

    drain: tuple[Uid, ...]
    """Bring to an end what is under way on these, then renew them."""
    lose: dict[Uid, str]
    """Links that some ranks no longer hold, and why the others must give them up."""
    free: tuple[Uid, ...]
    """Free the MPI communicators of these, after draining where it is listed there too."""
    abandon: tuple[Uid, ...]
    """What is under way on these cannot be brought to an end."""
    settled: dict[Uid, int]
    """Of those to drain: collectives complete on all ranks."""


def checksum(reports: Iterable[LinkReport], world_rank: int) -> int:
    """Return this rank's summand of a sum that is 0 modulo 2**64 if all is in order.

    In order means: each link is held by all its ranks, they have begun the same
    collectives, and every message sent was received.
    """
    total = 0
    for report in reports:
        uid, members = report.uid, report.uid.members
        word = digest((uid, report.begun, report.digest, report.alive))
        total += word * (len(members) - 1 if world_rank == members[0] else -1)
        here = members.index(world_rank)
        for peer, count in enumerate(report.sent):
            if count:
                total += digest((uid, here, peer)) * count
        for peer, count in enumerate(report.received):
            if count:
                total -= digest((uid, peer, here)) * count
    return total % 2**64


def in_step(uid: Uid, at: Mapping[int, LinkReport]) -> bool:
    """Say whether nothing is under way on a link, given the report of each world rank."""
    reports = [at[rank] for rank in uid.members if rank in at]
    if len(reports) < len(uid.members) or any(report.broken for report in reports):
        return False
    if len({(report.begun, report.digest) for report in reports}) > 1:
        return False
    return not any(map(any, outstanding(uid, at)))


def outstanding(uid: Uid, at: Mapping[int, LinkReport]) -> list[list[int]]:
    """Return how many messages are under way, as ``[dest][source]`` in ranks of the link."""
    reports = [at[rank] for rank in uid.members]
    return [
        [
            source.sent[here] - dest.received[there] if source.sent and dest.received else 0
            for there, source in enumerate(reports)
        ]
        for here, dest in enumerate(reports)
    ]


def by_link(by_rank: Sequence[Iterable[LinkReport]]) -> dict[Uid, dict[int, LinkReport]]:
    """Turn the reports of each world rank into those of each link."""
    found: dict[Uid, dict[int, LinkReport]] = {}
    for rank, reports in enumerate(by_rank):
        for report in reports:
            found.setdefault(report.uid, {})[rank] = report
    return found


def make_plan(found: Mapping[Uid, Mapping[int, LinkReport]]) -> Plan:
    """Decide from the reports of all world ranks; the same result on every rank."""
    drain: list[Uid] = []
    lose: dict[Uid, str] = {}
    free: list[Uid] = []
    abandon: list[Uid] = []
    settled: dict[Uid, int] = {}
    for uid in sorted(found):
        at = found[uid]
        gone = [r for r in uid.members if r not in at or not at[r].alive]
        if gone:
            free.append(uid)
            if len(gone) < len(uid.members):
                lose[uid] = f"is no longer held by rank {', '.join(map(str, gone))}"
        if in_step(uid, at):
            continue
        if set(at) == set(uid.members):
            drain.append(uid)
            settled[uid] = min(report.settled for report in at.values())
        elif any(report.broken for report in at.values()):
            # The others have freed it, when nothing was under way yet.
            abandon.append(uid)
    return Plan(tuple(drain), lose, tuple(free), tuple(abandon), settled)


def catch_up(
    histories: Mapping[int, Sequence[Past] | None], rank: int, size: int
) -> list[Signature] | None:
    """Return the collectives that a rank has to join, in order.

    Parameters
    ----------
    histories
        Of each rank of a link: what it began, from the last collective on that is complete
        everywhere; None if it does not remember.
    rank, size
        Who catches up, among how many.

    Returns
    -------
    None, for every rank, if the ranks did not begin the same collectives or one cannot be joined.
    """
    at: dict[int, dict[int, Past]] = {}
    for r, history in histories.items():
        if history is None:
            return None
        for past in history:
            at.setdefault(past.number, {})[r] = past
    joins = []
    for number in sorted(at):
        pasts = at[number]
        if len({past.digest for past in pasts.values()}) > 1:
            return None
        calls = {r: past.signature for r, past in pasts.items()}
        if not fit(calls):
            return None
        if len(calls) < size:
            if any(call.kind == Kind.OTHER for call in calls.values()):
                return None
            if rank not in calls:
                call = join(calls, rank, size)
                assert call is not None
                joins.append(call)
    return joins
