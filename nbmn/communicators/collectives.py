"""Collectives on arrays. All ranks agree before data moves.

Arrays go as they lie in memory, so every dtype without Python objects can travel; only
sums must understand them. Where an array is expected, a tuple of arrays will do.
Every function is collective over the link.
"""

from __future__ import annotations

import io
import operator
import pickle
from typing import Any

import numpy as np

from nbmn.communicators import arrays, transport
from nbmn.communicators.agreement import agree, compare
from nbmn.communicators.arrays import Message
from nbmn.communicators.backend import Backend
from nbmn.communicators.link import Link
from nbmn.communicators.transport import CHUNK, INLINE
from nbmn.gpu.placement import to_device, to_host


def allreduce(link: Link, backend: Backend, x: Any) -> Any:
    """See :meth:`Communicator.allreduce`."""
    error: Exception | None = None
    statement, wide, on_device = None, [], False
    try:
        message, given = arrays.look(x)
        statement = f"{message.dtypes} {message.shapes}"
        wide = [arrays.summing_dtype(form.dtype) for form in message.forms]
        on_device = message.on_device
    except TypeError as caught:
        error = caught
    everywhere = compare(link, "allreduce", statement, on_device, error)
    results = backend.sum_on_device(given) if all(everywhere) else None
    if results is None:
        results = []
        for form, array, dtype in zip(message.forms, given, wide, strict=True):
            total = _sum(backend, to_host(array), dtype)
            results.append(to_device(total) if form.on_device else total)
    return tuple(results) if message.is_tuple else results[0]


def _sum(backend: Backend, part: np.ndarray, wide: np.dtype) -> np.ndarray:
    """Return the sum of ``part`` over ranks, added in the dtype ``wide``."""
    # A copy: the sum replaces it.
    total = np.array(part, order="C")
    flat = total.reshape(-1)
    if wide == part.dtype:
        backend.sum(flat)
        return total
    # In pieces, as a whole it could be four times as large.
    for begin in range(0, flat.size, _WIDENED):
        piece = flat[begin : begin + _WIDENED]
        summed = piece.astype(wide)
        backend.sum(summed)
        piece[...] = summed
    return total


_WIDENED = 2**24  # elements


def bcast(link: Link, x: Any, root: int, longest: int = CHUNK) -> Any:
    """See :meth:`Communicator.bcast`."""
    error: Exception | None = None
    message, parts = None, []
    try:
        root = check_root(link, root)
        if link.rank == root:
            message, parts = arrays.read(x)
    except (TypeError, ValueError) as caught:
        error = caught
    agree(link, "bcast", f"from root {root}", error)
    if message is not None:
        about = pickle.dumps((message.forms, message.is_tuple))
        if len(about) + message.nbytes <= INLINE:
            transport.bcast_note(link, about + arrays.flatten(parts).tobytes(), root)
            return x
        transport.bcast_note(link, about, root)
        for part in parts:
            transport.bcast_in_place(link, part, root, longest)
        return x
    note = transport.bcast_note(link, None, root)
    about, contents = _unpickle(note)
    message = Message(*about)
    if len(contents):
        return arrays.restore(message, contents)
    data = np.empty(message.nbytes, np.uint8)
    begin = 0
    for form in message.forms:
        transport.bcast_in_place(link, data[begin : begin + form.nbytes], root, longest)
        begin += form.nbytes
    return arrays.restore(message, data)


def gather(link: Link, x: Any, root: int, longest: int = CHUNK) -> tuple[Any, ...] | None:
    """See :meth:`Communicator.gather`."""
    error: Exception | None = None
    message, parts, alike = None, [], None
    try:
        root = check_root(link, root)
        message, parts = arrays.read(x)
        alike = f"of {message.dtypes} to root {root}"
    except (TypeError, ValueError) as caught:
        error = caught
    messages = compare(link, "gather", alike, message, error)
    lengths = [message.nbytes for message in messages]
    mine = arrays.flatten(parts)
    everyone = transport.gather_bytes(link, mine, lengths, root, longest)
    return None if everyone is None else tuple(map(arrays.restore, messages, everyone))


def allgather(link: Link, x: Any, longest: int = CHUNK) -> tuple[Any, ...]:
    """See :meth:`Communicator.allgather`."""
    error: Exception | None = None
    message, parts, alike = None, [], None
    try:
        message, parts = arrays.read(x)
        alike = f"of {message.dtypes}"
    except TypeError as caught:
        error = caught
    messages = compare(link, "allgather", alike, message, error)
    lengths = [message.nbytes for message in messages]
    everyone = transport.allgather_bytes(link, arrays.flatten(parts), lengths, longest)
    return tuple(map(arrays.restore, messages, everyone))


def alltoall(link: Link, xs: Any, longest: int = CHUNK) -> tuple[Any, ...]:
    """See :meth:`Communicator.alltoall`."""
    error: Exception | None = None
    messages: tuple[Message, ...] = ()
    parts: list[np.ndarray] = []
    alike = None
    try:
        messages, parts = _read_parts(link, xs)
        alike = f"of {messages[0].dtypes}"
    except (TypeError, ValueError) as caught:
        error = caught
    everyone = compare(link, "alltoall", alike, messages, error)
    lengths = [[message.nbytes for message in theirs] for theirs in everyone]
    received = transport.alltoall_bytes(link, parts, lengths, longest)
    mine = [theirs[link.rank] for theirs in everyone]
    return tuple(map(arrays.restore, mine, received))


def scatter(link: Link, xs: Any, root: int, longest: int = CHUNK) -> Any:
    """See :meth:`Communicator.scatter`."""
    error: Exception | None = None
    messages: tuple[Message, ...] = ()
    parts: list[np.ndarray] | None = None
    try:
        root = check_root(link, root)
        if link.rank == root:
            messages, parts = _read_parts(link, xs)
    except (TypeError, ValueError) as caught:
        error = caught
    agree(link, "scatter", f"from root {root}", error)
    note = transport.bcast_note(link, pickle.dumps(messages) if parts is not None else None, root)
    messages = pickle.loads(note)
    lengths = [message.nbytes for message in messages]
    mine = transport.scatter_bytes(link, parts, lengths, root, longest)
    return arrays.restore(messages[link.rank], mine)


def check_root(link: Link, root: Any) -> int:
    """Return ``root`` as an integer.

    Raises
    ------
    TypeError
        It is none.
    ValueError
        There is no such rank.
    """
    try:
        root = operator.index(root)
    except TypeError:
        raise TypeError(f"root must be a rank, not {root!r}") from None
    if not 0 <= root < link.size:
        raise ValueError(f"root {root} is not among the {link.size} ranks")
    return root


def _read_parts(link: Link, xs: Any) -> tuple[tuple[Message, ...], list[np.ndarray]]:
    """Read one array, or tuple of arrays, for each rank.

    Raises
    ------
    TypeError
        Not arrays, or of different dtypes.
    ValueError
        Not as many as there are ranks.
    """
    if not isinstance(xs, (tuple, list)):
        arrays.require_array(xs)
        if xs.ndim == 0:
            raise TypeError("takes one array for each rank, not a 0-d array")
    if len(xs) != link.size:
        raise ValueError(f"takes one array for each of the {link.size} ranks, not {len(xs)}")
    # Not by iterating: the items of a 1-d array would be scalars, in native byte order.
    parted = xs if isinstance(xs, (tuple, list)) else [xs[i, ...] for i in range(len(xs))]
    messages, parts = zip(*map(arrays.read, parted), strict=True)
    for message in messages:
        if message.dtypes != messages[0].dtypes:
            raise TypeError(
                "takes arrays of one dtype, not of "
                f"{messages[0].dtypes} and {message.dtypes} together"
            )
    return messages, [arrays.flatten(part) for part in parts]


def _unpickle(note: bytes) -> tuple[Any, np.ndarray]:
    """Split a note into what its pickle says and the bytes after it."""
    stream = io.BytesIO(note)
    about = pickle.load(stream)
    return about, np.frombuffer(bytearray(stream.read()), np.uint8)
