"""Moves pickled Python objects between the ranks of a link.

An object that cannot be pickled on one rank is the same error on all of them:
its length is announced as -1, and the text of the error travels instead.
"""

from __future__ import annotations

import pickle
from typing import Any

import cloudpickle

from nbmn.communicators import transport
from nbmn.communicators.link import Link
from nbmn.communicators.transport import CHUNK


def dump(obj: Any) -> bytes:
    """Pickle an object; by value what plain pickle cannot name (lambdas, notebook classes)."""
    try:
        return pickle.dumps(obj, pickle.HIGHEST_PROTOCOL)
    except (pickle.PicklingError, AttributeError, TypeError):
        return cloudpickle.dumps(obj)


def bcast(link: Link, obj: Any, root: int, max_buf_len: int = CHUNK) -> Any:
    """Return the root's object; collective."""
    mine: bytes | None = None
    error: Exception | None = None
    if link.rank == root:
        mine, error = _try_dump(obj)
    payload = transport.bcast_bytes(link, mine, root, max_buf_len)
    if payload[0]:
        raise _unpicklable(root, payload[1:].tobytes()) from error
    return obj if link.rank == root else pickle.loads(payload[1:])


def allgather(link: Link, obj: Any) -> list[Any]:
    """Return each rank's object, in rank order; collective."""
    payload, error = _try_dump(obj)
    lengths = transport.allgather_int(link, len(payload))
    everyone = transport.allgather_bytes(link, payload, lengths)
    for rank, message in enumerate(everyone):
        if message[0]:
            raise _unpicklable(rank, message[1:].tobytes()) from error
    return [pickle.loads(message[1:]) for message in everyone]


def gather(link: Link, obj: Any, root: int) -> list[Any] | None:
    """Return each rank's object at the root, None elsewhere; collective."""
    payload, error = _try_dump(obj)
    lengths = transport.allgather_int(link, -len(payload) if error else len(payload))
    failed = next((rank for rank, length in enumerate(lengths) if length < 0), None)
    if failed is not None:
        text = transport.bcast_bytes(link, payload, failed)
        raise _unpicklable(failed, text[1:].tobytes()) from error
    everyone = transport.gather_bytes(link, payload, lengths, root)
    return None if everyone is None else [pickle.loads(message[1:]) for message in everyone]


def send(link: Link, obj: Any, dest: int, tag: int) -> None:
    """Send an object to one rank; local."""
    transport.send_bytes(link, dump(obj), dest, tag)


def recv(link: Link, source: int, tag: int) -> Any:
    """Receive an object from one rank; local."""
    return pickle.loads(transport.recv_bytes(link, source, tag))


def _try_dump(obj: Any) -> tuple[bytes, Exception | None]:
    # The first byte says whether an object or the text of an error follows. What
    # pickling can raise is up to the objects, hence the broad except.
    try:
        return b"\0" + dump(obj), None
    except Exception as error:  # noqa: BLE001
        return b"\1" + f"{type(error).__name__}: {error}".encode(), error


def _unpicklable(rank: int, text: bytes) -> TypeError:
    return TypeError(f"the object on rank {rank} cannot be pickled ({text.decode()})")
