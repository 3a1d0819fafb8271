"""Sends arrays and objects from one rank to another.

A message begins with a note of what follows. What the sender cannot send it announces
as an error, so that the receiver fails too instead of waiting for ever. Everything
here is local.
"""

from __future__ import annotations

import operator
import pickle
from typing import TYPE_CHECKING, Any

import numpy as np

from nbmn.communicators import arrays, objects, transport
from nbmn.communicators.errors import MismatchError
from nbmn.communicators.link import Link
from nbmn.communicators.transport import CHUNK, INLINE

if TYPE_CHECKING:
    from mpi4py import MPI

LARGEST_TAG = 32767
"""Every MPI has at least the tags up to this."""

_PREFIX = 3  # bytes: the kind, and the length of what describes the arrays
_ERROR, _OBJECT, _ARRAY, _ARRAY_HERE = b"E", b"O", b"A", b"H"


def send_obj(link: Link, obj: Any, dest: int, tag: int, longest: int = CHUNK) -> None:
    """Send an object; returns when it is being received, or at once where it is short."""
    dest, tag = _peer(link, dest), _tag(tag)
    try:
        payload = objects.dump(obj)
    except TypeError as error:
        _send_error(link, error, dest, tag)
        raise
    send_payload(link, payload, dest, tag, longest)


def send_payload(
    link: Link, payload: objects.Payload, dest: int, tag: int, longest: int = CHUNK
) -> None:
    """Send an object that was dumped."""
    note = objects.announce(payload)
    transport.send_note(link, _OBJECT + note, dest, tag, eager=True)
    if objects.read(note)[0] is None:
        for part in payload:
            transport.send_bytes(link, part, dest, tag, longest)


def recv_obj(
    link: Link,
    source: int | None,
    tag: int | None,
    status: MPI.Status | None = None,
    longest: int = CHUNK,
) -> objects.Payload:
    """Receive what ``send_obj`` sends, pickled; None stands for any source or tag."""
    kind, note, source, tag = _begin(link, source, tag, status)
    if kind != _OBJECT:
        _take_arrays(link, kind, note, source, tag)
        raise MismatchError(
            f"recv_obj: rank {source} sent an array to rank {link.rank}; receive it by recv"
        )
    return _take_payload(link, note, source, tag, longest)


def recv_payload(link: Link, source: int, tag: int, longest: int = CHUNK) -> objects.Payload:
    """Receive what ``send_payload`` sends."""
    note = transport.recv_note(link, source, tag)
    return _take_payload(link, note[1:], source, tag, longest)


def send(link: Link, data: Any, dest: int, tag: int) -> None:
    """Send an array, or a tuple of arrays; returns when it is being received."""
    dest, tag = _peer(link, dest), _tag(tag)
    try:
        message, parts = arrays.read(data)
    except TypeError as error:
        _send_error(link, TypeError(f"send {error}"), dest, tag)
        raise TypeError(f"send {error}") from error
    about = pickle.dumps((message.forms, message.is_tuple))
    together = len(about) + message.nbytes + _PREFIX
    if together <= INLINE:
        length = len(about).to_bytes(_PREFIX - 1, "little")
        note = _ARRAY_HERE + length + about + arrays.flatten(parts).tobytes()
        transport.send_note(link, note, dest, tag)
        return
    transport.send_note(link, _ARRAY + about, dest, tag)
    for part in parts:
        transport.send_bytes(link, arrays.as_bytes(part), dest, tag)


def recv(link: Link, source: int | None, tag: int | None) -> Any:
    """Receive what ``send`` sends; None stands for any source or tag."""
    kind, note, source, tag = _begin(link, source, tag, None)
    if kind == _OBJECT:
        _take_payload(link, note, source, tag)
        raise MismatchError(
            f"recv: rank {source} sent an object to rank {link.rank}; receive it by recv_obj"
        )
    return _take_arrays(link, kind, note, source, tag)


def _take_arrays(link: Link, kind: bytes, note: bytes, source: int, tag: int) -> Any:
    if kind == _ARRAY_HERE:
        end = int.from_bytes(note[: _PREFIX - 1], "little") + _PREFIX - 1
        message = arrays.Message(*pickle.loads(note[_PREFIX - 1 : end]))
        return arrays.restore(message, np.frombuffer(bytearray(note[end:]), np.uint8))
    message = arrays.Message(*pickle.loads(note))
    data = np.empty(message.nbytes, np.uint8)
    begin = 0
    for form in message.forms:
        end = begin + form.nbytes
        transport.recv_bytes(link, data[begin:end], source, tag)
        begin = end
    return arrays.restore(message, data)


def _take_payload(
    link: Link, note: bytes, source: int, tag: int, longest: int = CHUNK
) -> objects.Payload:
    payload, sizes = objects.read(note)
    if payload is None:
        payload = objects.room(sizes)
        for part in payload:
            transport.recv_bytes(link, part, source, tag, longest)
    return payload


def _begin(
    link: Link, source: int | None, tag: int | None, status: MPI.Status | None
) -> tuple[bytes, bytes, int, int]:
    """Receive the note; return its kind, the rest of it, the source and the tag."""
    source = None if source is None else _peer(link, source)
    tag = None if tag is None else _tag(tag)
    if source is None or tag is None or status is not None:
        source, tag = transport.probe(link, source, tag, status)
    note = transport.recv_note(link, source, tag)
    kind, rest = note[:1], note[1:]
    if kind == _ERROR:
        raise TypeError(f"on rank {source}: {rest.decode()}")
    return kind, rest, source, tag


def _send_error(link: Link, error: TypeError, dest: int, tag: int) -> None:
    transport.send_note(link, _ERROR + str(error).encode(), dest, tag, eager=True)


def _peer(link: Link, peer: int) -> int:
    peer = operator.index(peer)
    if not 0 <= peer < link.size:
        raise MismatchError(f"rank {link.rank}: no rank {peer}, there are {link.size}")
    if peer == link.rank:
        raise MismatchError(f"rank {peer} cannot exchange messages with itself")
    return peer


def _tag(tag: int) -> int:
    tag = operator.index(tag)
    if not 0 <= tag <= LARGEST_TAG:
        raise ValueError(f"tags are from 0 to {LARGEST_TAG}, not {tag}")
    return tag
