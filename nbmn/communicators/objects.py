"""Moves pickled Python objects between the ranks of a link.

Large buffers inside an object (arrays, above all) are not copied into its pickle: they
travel from where they lie to where they will lie, in messages of limited length.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any

import cloudpickle
import numpy as np

from nbmn.communicators import transport
from nbmn.communicators.link import Link
from nbmn.communicators.transport import CHUNK, INLINE, as_bytes_of

APART = 1024 * 1024
"""Buffers of at least so many bytes stay out of the pickle."""

_WHOLE, _SIZES = b"\0", b"\1"  # what the first byte of a note says of the rest

Payload = tuple[np.ndarray, ...]
"""uint8: the pickle, then the buffers that it refers to."""


def dump(obj: Any) -> Payload:
    """Pickle an object; by value what plain pickle cannot name (lambdas, notebook classes).

    The buffers are the object's own memory: it must not change until they were sent.

    Raises
    ------
    TypeError
        It cannot be pickled.
    """
    try:
        try:
            return _dump(pickle.dumps, obj)
        except (pickle.PicklingError, AttributeError, TypeError):
            return _dump(cloudpickle.dumps, obj)
    except Exception as error:  # what pickling can raise is up to the objects
        raise TypeError(
            f"the object cannot be pickled ({type(error).__name__}: {error})"
        ) from error


def load(payload: Payload) -> Any:
    """Return the object; its arrays are views into the payload, and writable."""
    return pickle.loads(payload[0], buffers=payload[1:])


def bcast(link: Link, payload: Payload | None, root: int, longest: int = CHUNK) -> Any:
    """Return the object that the root dumped; the root itself gets None. Collective."""
    at_root = link.rank == root
    note = transport.bcast_note(link, announce(payload) if at_root and payload else None, root)
    whole, sizes = read(note)
    if whole is None:
        whole = payload if at_root and payload else room(sizes)
        for part in whole:
            transport.bcast_in_place(link, part, root, longest)
    return None if at_root else load(whole)


def allgather(link: Link, obj: Any, longest: int = CHUNK) -> list[Any]:
    """Return each rank's object, in rank order; collective."""
    return allgather_dumped(link, dump(obj), longest)


def allgather_dumped(link: Link, mine: Payload, longest: int = CHUNK) -> list[Any]:
    """Return each rank's object, in rank order; collective."""
    told = [read(note) for note in transport.allgather_notes(link, announce(mine))]
    if all(whole is not None for whole, _ in told):
        return [load(whole) for whole, _ in told]
    if all(len(sizes) == 1 for _, sizes in told):
        lengths = [sizes[0] for _, sizes in told]
        return [load((p,)) for p in transport.allgather_bytes(link, mine[0], lengths, longest)]
    everyone = []
    for rank, (_, sizes) in enumerate(told):
        # Copied, so that what this rank gets of its own shares no memory with what it gave.
        payload = copy(mine) if rank == link.rank else room(sizes)
        for part in payload:
            transport.bcast_in_place(link, part, rank, longest)
        everyone.append(load(payload))
    return everyone


def gather_dumped(link: Link, mine: Payload, root: int, longest: int = CHUNK) -> list[Any] | None:
    """Return each rank's object at the root, None elsewhere; collective."""
    at_root = link.rank == root
    told = [read(note) for note in transport.allgather_notes(link, announce(mine))]
    if all(whole is not None for whole, _ in told):
        return [load(whole) for whole, _ in told] if at_root else None
    if all(len(sizes) == 1 for _, sizes in told):
        lengths = [sizes[0] for _, sizes in told]
        parts = transport.gather_bytes(link, mine[0], lengths, root, longest)
        return [load((part,)) for part in parts] if at_root else None
    if not at_root:
        for part in mine:
            transport.send_bytes(link, part, root, 0, longest)
        return None
    everyone = []
    for rank, (_, sizes) in enumerate(told):
        payload = copy(mine) if rank == root else room(sizes)
        for part in payload if rank != root else ():
            transport.recv_bytes(link, part, rank, 0, longest)
        everyone.append(load(payload))
    return everyone


def announce(payload: Payload) -> bytes:
    """Return a note of the payload: the whole where it is short, its sizes otherwise."""
    if len(payload) == 1 and payload[0].size < INLINE:
        return _WHOLE + payload[0].tobytes()
    return _SIZES + np.array([part.size for part in payload], np.int64).tobytes()


def read(note: bytes) -> tuple[Payload | None, list[int]]:
    """Return the payload, if the note holds it, and the sizes of its parts."""
    if note[:1] == _WHOLE:
        return (as_bytes_of(note[1:]),), [len(note) - 1]
    return None, np.frombuffer(note[1:], np.int64).tolist()


def room(sizes: Sequence[int]) -> Payload:
    """Return where to receive a payload with parts of these sizes."""
    return tuple(np.empty(size, np.uint8) for size in sizes)


def copy(payload: Payload) -> Payload:
    """Return a payload that shares no memory with the object."""
    return tuple(part.copy() for part in payload)


def _dump(dumps: Callable[..., bytes], obj: Any) -> Payload:
    apart: list[np.ndarray] = []

    def in_band(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes < APART:
            return True
        apart.append(as_bytes_of(raw))
        return False

    main = dumps(obj, protocol=pickle.HIGHEST_PROTOCOL, buffer_callback=in_band)
    return (as_bytes_of(main), *apart)
