"""Gives each rank its part of what the root has, one part at a time."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any

from nbmn.communicators import objects, transport
from nbmn.communicators.agreement import agree
from nbmn.communicators.link import Link

_TAG = 0


def scatter(
    link: Link,
    operation: str,
    make: Callable[[], Sequence[Callable[[], Any]]],
    root: int,
    max_buf_len: int,
    remedy: str,
) -> Any:
    """Return this rank's part; collective.

    ``make`` is called at the root only and returns one function per rank, which makes the
    part when its turn comes: at no time do all parts exist beside the whole.

    Raises
    ------
    Exception
        On all ranks, the same: ``make`` failed, or a part could not be made, pickled or
        unpickled; ``remedy`` is appended where it could not be pickled.
    """
    parts: Sequence[Callable[[], Any]] = ()
    error: Exception | None = None
    try:
        if not 0 <= root < link.size:
            raise ValueError(f"root {root} is not among the {link.size} ranks")
        if max_buf_len < 1:
            raise ValueError(f"max_buf_len must be positive, not {max_buf_len}")
        if link.rank == root:
            parts = make()
    except Exception as caught:  # noqa: BLE001 - the user's dataset may raise anything
        error = caught
    agree(link, operation, (root, max_buf_len), error)

    mine: Any = None
    if link.rank == root:
        for rank in range(link.size):
            # Nothing, in place of a part, tells a rank that there will be none.
            payload = b""
            try:
                if error is None and rank == root:
                    mine = parts[rank]()
                elif error is None:
                    payload = _dump(parts[rank](), rank, remedy)
            except Exception as caught:  # noqa: BLE001
                error = caught
            if rank != root:
                transport.send_bytes(link, payload, rank, _TAG, max_buf_len)
    else:
        payload = transport.recv_bytes(link, root, _TAG, max_buf_len)
        try:
            mine = pickle.loads(payload) if payload.size else None
        except Exception as caught:  # noqa: BLE001
            error = caught
    agree(link, operation, None, error)
    return mine


def _dump(part: Any, rank: int, remedy: str) -> bytes:
    try:
        return objects.dump(part)
    except Exception as error:
        raise TypeError(
            f"the part for rank {rank} cannot be pickled ({type(error).__name__}: {error}); "
            f"{remedy}"
        ) from error
