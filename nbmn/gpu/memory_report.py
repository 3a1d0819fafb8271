"""An account of the memory of a rank that wanted more than there was, in words."""

from __future__ import annotations

from dataclasses import dataclass

from nbmn.gpu.memory import Holder

SHOWN = 8
"""Holders that are named at most; the rest is summed up."""
SMALL = 0.001
"""The part of the memory in use below which a holder is not named."""
LARGE = 0.1
"""The part of the memory in use from which on something is worth to be let go."""


@dataclass(frozen=True, slots=True)
class Neighbour:
    """Another process on the same GPU."""

    pid: int
    nbytes: int | None
    what: str = ""
    """Its rank or its command, if known."""
    is_rank: bool = False
    """Whether it is one of the same notebook's ranks."""


@dataclass(frozen=True, slots=True)
class Pool:
    """CuPy's memory pool of this process."""

    used: int
    """Bytes in arrays."""
    held: int
    """Bytes that it has taken from the GPU."""
    free_blocks: int | None
    """None where they are not counted."""
    limit: int = 0
    """Bytes that it may take; 0 for all."""


@dataclass(frozen=True, slots=True)
class Account:
    """Where the memory is. Numbers are bytes; None is unknown."""

    device: str
    """Such as ``GPU 1 (NVIDIA H200)``, or a host."""
    free: int
    total: int
    used: int
    """In this process's arrays on a GPU; by the process on a host."""
    holders: tuple[Holder, ...] = ()
    pool: Pool | None = None
    """None for a host's memory."""
    neighbours: tuple[Neighbour, ...] = ()
    rank: int = 0
    asked: int | None = None
    released: int = 0
    """What the failed call held itself, and no longer does."""


def report(account: Account) -> str:
    """Say who holds what, and what to do; the first line alone says how much is missing."""
    lines = [_headline(account), *_pool(account), f"in use by: {_holders(account)}"]
    if account.released:
        lines.append(f"let go of with the failed call: {size(account.released)}")
    lines.append(f"what helps: {'; '.join(advice(account))}")
    return "\n  ".join(lines)


def _headline(account: Account) -> str:
    asked = "" if account.asked is None else f"{size(account.asked)} asked for, "
    process = "" if account.pool else f", {size(account.used)} used by this rank"
    where = f"rank {account.rank}, {account.device}"
    return f"{where}: {asked}{size(account.free)} of {size(account.total)} free{process}"


def _pool(account: Account) -> list[str]:
    pool = account.pool
    if pool is None:
        return []
    number = "" if pool.free_blocks is None else f"{pool.free_blocks} "
    blocks = f"{number}free block{'s' * (pool.free_blocks != 1)}"
    limit = f" (its limit: {size(pool.limit)})" if pool.limit else ""
    lines = [
        f"CuPy's pool on this rank has {size(pool.held)}{limit}: {size(pool.used)} in arrays, "
        f"{size(pool.held - pool.used)} in {blocks}"
    ]
    outside = account.total - account.free - pool.held
    if outside > 0:
        told = ", ".join(map(_neighbour, account.neighbours))
        lines.append(
            f"outside the pool are {size(outside)}: "
            + (f"CUDA's own, and of {told}" if told else "CUDA's own, and other processes'")
        )
    return lines


def _neighbour(neighbour: Neighbour) -> str:
    what = f" ({neighbour.what})" if neighbour.what else ""
    nbytes = "" if neighbour.nbytes is None else f" {size(neighbour.nbytes)}"
    return f"pid {neighbour.pid}{what}{nbytes}"


def _holders(account: Account) -> str:
    worth = sum(holder.nbytes >= SMALL * account.used for holder in account.holders)
    shown, rest = account.holders[: min(worth, SHOWN)], account.holders[min(worth, SHOWN) :]
    parts = [f"{describe(h)} {size(h.nbytes)} ({h.what})" for h in shown]
    if rest:
        parts.append(f"{len(rest)} others {size(sum(holder.nbytes for holder in rest))}")
    nameless = account.used - sum(holder.nbytes for holder in account.holders)
    if nameless > 0 and account.pool:
        parts.append(f"what no variable leads to {size(nameless)}")
    return ", ".join(parts) or "nothing that a variable leads to"


def describe(holder: Holder) -> str:
    """A holder's name: ``gradients of `model` ``, ```h` in forward()``."""
    where = f" in {holder.root.function}()" if holder.root.function else ""
    part = f"{holder.part} of " if holder.part else ""
    return f"{part}`{holder.root.name}`{where}"


def advice(account: Account) -> list[str]:
    """What to do next, the surest first."""
    asked, pool = account.asked or 0, account.pool
    if asked > account.total:
        return [f"no more than {size(account.total)} are there: smaller arrays, or a smaller batch"]
    steps = []
    if pool and pool.limit and account.free > asked:
        steps.append("lift the limit: cupy.get_default_memory_pool().set_limit(size=0)")
    for neighbour in account.neighbours:
        if neighbour.is_rank:
            steps.append(f"{neighbour.what} uses the same GPU: start fewer ranks")
        elif (neighbour.nbytes or 0) > LARGE * account.total:
            steps.append(f"end pid {neighbour.pid} if it is yours")
    for holder in account.holders:
        if not holder.root.function and holder.nbytes > LARGE * account.used:
            steps += _letting_go(holder)
    if pool and pool.held - pool.used > max(asked, LARGE * pool.held):
        steps.append("cupy.get_default_memory_pool().free_all_blocks() gives back the free blocks")
    return [*steps, "a smaller batch"]


def _letting_go(holder: Holder) -> list[str]:
    name = holder.root.name
    if holder.root.needed:
        return []
    if holder.part == "graph":
        return [f"`{name}` keeps its graph: `del {name}`, or keep `{name}.array` only"]
    return [f"`del {name}` if it is done with"]


def size(nbytes: int) -> str:
    """``512 B``, ``98.3 MiB``, ``1.25 GiB``."""
    amount, units = float(nbytes), ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]
    while amount >= 1023.5 and len(units) > 1:
        amount /= 1024
        units.pop(0)
    digits = 0 if units[0] == "B" or amount >= 100 else 1 if amount >= 10 else 2
    return f"{amount:.{digits}f} {units[0]}"
