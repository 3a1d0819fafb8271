"""Gives each rank its part of what the root has, one part at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from nbmn.communicators import messages, objects
from nbmn.communicators.agreement import agree
from nbmn.communicators.collectives import check_root
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
        root = check_root(link, root)
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
            # Where there is an error, None takes the place of the part.
            payload = objects.dump(None)
            try:
                if error is None and rank == root:
                    mine = parts[rank]()
                elif error is None:
                    payload = _dump(parts[rank](), rank, remedy)
            except Exception as caught:  # noqa: BLE001
                error = caught
            if rank != root:
                messages.send_payload(link, payload, rank, _TAG, max_buf_len)
    else:
        payload = messages.recv_payload(link, root, _TAG, max_buf_len)
        try:
            mine = objects.load(payload)
        except Exception as caught:  # noqa: BLE001
            error = caught
    agree(link, operation, None, error)
    return mine


def _dump(part: Any, rank: int, remedy: str) -> objects.Payload:
    try:
        return objects.dump(part)
    except TypeError as error:
        raise TypeError(f"the part for rank {rank}: {error}; {remedy}") from error
