"""Which ranks: the text a person types, and the text a person reads."""

from __future__ import annotations

import re
from collections.abc import Iterable

_ITEM = re.compile(r"\s*(?:(-?\d+)|(-?\d*):(-?\d*)(?::(-?\d*))?)\s*")


def parse_ranks(text: str, size: int) -> tuple[int, ...]:
    """Read a selection of ranks.

    Parameters
    ----------
    text
        ``all`` (or nothing), a rank, a Python slice, or several of them with
        commas: ``0``, ``0,2``, ``1:``, ``::2``, ``-1``.
    size
        World size.

    Returns
    -------
    tuple of int
        Ranks in rising order, each once.

    Raises
    ------
    ValueError
        The text is not a selection, a rank is out of range, or none is left.

    Examples
    --------
    >>> parse_ranks("0,2:", 4)
    (0, 2, 3)
    """
    if text.strip() in ("", "all"):
        return tuple(range(size))
    chosen: set[int] = set()
    for item in text.split(","):
        match = _ITEM.fullmatch(item)
        if match is None:
            raise ValueError(
                f"{item.strip()!r} is not a choice of ranks; write all, 0, 0,2, 1: or ::2"
            )
        single, *bounds = match.groups()
        if single is not None:
            rank = int(single)
            if not -size <= rank < size:
                raise ValueError(f"no rank {rank}: {_have(size)}")
            chosen.add(rank % size)
        else:
            start, stop, step = (int(bound) if bound else None for bound in bounds)
            if step == 0:
                raise ValueError(f"the step of {item.strip()!r} is zero")
            chosen.update(range(size)[slice(start, stop, step)])
    if not chosen:
        raise ValueError(f"{text.strip()!r} chooses no rank: {_have(size)}")
    return tuple(sorted(chosen))


def _have(size: int) -> str:
    return "there is rank 0 only" if size == 1 else f"there are ranks 0 to {size - 1}"


def name_ranks(ranks: Iterable[int]) -> str:
    """Ranks as a person reads them.

    Examples
    --------
    >>> name_ranks([3])
    'rank 3'
    >>> name_ranks([0, 1, 2, 5])
    'ranks 0–2, 5'
    """
    ordered = sorted(ranks)
    runs: list[list[int]] = []
    for rank in ordered:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    parts = [
        f"{run[0]}–{run[-1]}" if len(run) > 2 else ", ".join(str(rank) for rank in run)
        for run in runs
    ]
    return f"rank{'s' if len(ordered) > 1 else ''} {', '.join(parts)}"
