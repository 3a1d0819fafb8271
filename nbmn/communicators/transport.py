"""Moves bytes and numbers between the ranks of a link, by non-blocking MPI.

Every function is collective over the link, except those that send and receive.
Arrays are NumPy, contiguous, of a dtype that MPI knows; callers see to that. No
message is longer than ``CHUNK`` bytes, whatever MPI can count.

What the ranks cannot know beforehand travels as a *note*: short bytes in one message of
``NOTE`` bytes, followed by the rest where they are longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from nbmn.communicators.arrays import as_bytes
from nbmn.communicators.link import Link, Pending
from nbmn.communicators.reduction import add
from nbmn.communicators.runtime import mpi

if TYPE_CHECKING:
    from mpi4py import MPI

CHUNK = 256 * 1024 * 1024
"""Longest single message in bytes, unless the caller names another."""

NOTE = 256
"""Bytes of the first message of a note."""

_HEAD = 8  # bytes of the length in front of a note
INLINE = NOTE - _HEAD
"""Longest note in bytes that is one message."""


def start_max(link: Link, values: np.ndarray) -> Pending:
    """Begin the elementwise maximum over ranks, in place."""
    return link.start(lambda comm: comm.Iallreduce(mpi().IN_PLACE, values, mpi().MAX), values)


def sum_in_place(link: Link, values: np.ndarray) -> None:
    """Replace flat ``values`` by its sum over ranks."""
    if link.size > 1:
        for piece in _pieces(values, CHUNK // values.itemsize):
            link.run(
                lambda comm, piece=piece: comm.Iallreduce(mpi().IN_PLACE, piece, mpi().SUM), piece
            )


def sum_in_order(link: Link, values: np.ndarray) -> None:
    """Like :func:`sum_in_place`, added in rank order: alike to the last bit wherever it runs."""
    size = link.size
    if size <= 2:
        sum_in_place(link, values)
        return
    for piece in _pieces(values, CHUNK // values.itemsize):
        # As many columns as a shard has elements, the last shard filled up with zeros.
        mine = np.zeros((size, -(-piece.size // size)), piece.dtype)
        mine.reshape(-1)[: piece.size] = piece
        theirs = np.empty_like(mine)
        link.run(lambda comm, a=mine, b=theirs: comm.Ialltoall(a, b), mine, theirs)
        add(theirs, theirs[0])
        link.run(lambda comm, a=theirs, b=mine: comm.Iallgather(a[0], b), mine, theirs)
        piece[...] = mine.reshape(-1)[: piece.size]


def sum_shards(link: Link, values: np.ndarray) -> np.ndarray:
    """Return this rank's shard, of as many equal ones as ranks, of the sum of ``values``."""
    shard = np.empty(values.size // link.size, values.dtype)
    link.run(lambda comm: comm.Ireduce_scatter_block(values, shard, mpi().SUM), values, shard)
    return shard


def allgather_in_place(link: Link, shard: np.ndarray, values: np.ndarray) -> None:
    """Put the shards of all ranks together in ``values``."""
    link.run(lambda comm: comm.Iallgather(shard, values), shard, values)


def barrier(link: Link) -> None:
    """Return when all ranks have called."""
    if link.ledger.meets:
        link.run(lambda comm: comm.Imeet(0))
    else:
        link.run(lambda comm: comm.Ibarrier())


def bcast_in_place(link: Link, values: np.ndarray, root: int, longest: int = CHUNK) -> None:
    """Overwrite ``values`` with the root's."""
    for piece in _pieces(as_bytes(values), longest):
        link.run(lambda comm, piece=piece: comm.Ibcast(piece, root), piece)


def bcast_note(link: Link, note: bytes | None, root: int) -> bytes:
    """Return the root's note; the notes of other ranks are ignored."""
    head = _head(note or b"")
    link.run(lambda comm: comm.Ibcast(head, root), head)
    length = _length(head)
    if length <= INLINE:
        return head[_HEAD : _HEAD + length].tobytes()
    whole = np.frombuffer(note, np.uint8) if link.rank == root else np.empty(length, np.uint8)
    bcast_in_place(link, whole, root)
    return whole.tobytes()


def allgather_notes(link: Link, note: bytes) -> list[bytes]:
    """Return the note of each rank, in rank order."""
    mine = _head(note)
    heads = np.empty((link.size, NOTE), np.uint8)
    link.run(lambda comm: comm.Iallgather(mine, heads), mine, heads)
    lengths = [_length(head) for head in heads]
    if max(lengths) <= INLINE:
        return [head[_HEAD : _HEAD + n].tobytes() for head, n in zip(heads, lengths, strict=True)]
    return [part.tobytes() for part in allgather_bytes(link, as_bytes_of(note), lengths)]


def allgather_bytes(
    link: Link, mine: np.ndarray, lengths: Sequence[int], longest: int = CHUNK
) -> list[np.ndarray]:
    """Return the bytes of each rank; ``lengths`` are already known to all."""
    if sum(lengths) <= longest:
        everything = np.empty(sum(lengths), np.uint8)
        counts = (list(lengths), _offsets(lengths))
        link.run(
            lambda comm: comm.Iallgatherv(mine, [everything, counts, mpi().BYTE]), mine, everything
        )
        return _cut(everything, lengths)
    parts = [np.empty(length, np.uint8) for length in lengths]
    parts[link.rank][...] = mine
    for rank, part in enumerate(parts):
        bcast_in_place(link, part, rank, longest)
    return parts


def gather_bytes(
    link: Link, mine: np.ndarray, lengths: Sequence[int], root: int, longest: int = CHUNK
) -> list[np.ndarray] | None:
    """Return the bytes of each rank at the root, None elsewhere; all know ``lengths``."""
    if sum(lengths) <= longest:
        everything = np.empty(sum(lengths) if link.rank == root else 0, np.uint8)
        there = [everything, (list(lengths), _offsets(lengths)), mpi().BYTE]
        link.run(
            lambda comm: comm.Igatherv(mine, there if link.rank == root else None, root),
            mine,
            everything,
        )
        return _cut(everything, lengths) if link.rank == root else None
    if link.rank != root:
        send_bytes(link, mine, root, 0, longest)
        return None
    parts = [np.empty(length, np.uint8) for length in lengths]
    parts[root][...] = mine
    for rank, part in enumerate(parts):
        if rank != root:
            recv_bytes(link, part, rank, 0, longest)
    return parts


def scatter_bytes(
    link: Link,
    parts: Sequence[np.ndarray] | None,
    lengths: Sequence[int],
    root: int,
    longest: int = CHUNK,
) -> np.ndarray:
    """Return this rank's part of the root's; all know ``lengths``."""
    mine = np.empty(lengths[link.rank], np.uint8)
    if sum(lengths) <= longest:
        everything = np.concatenate(parts) if parts is not None else np.empty(0, np.uint8)
        there = [everything, (list(lengths), _offsets(lengths)), mpi().BYTE]
        link.run(
            lambda comm: comm.Iscatterv(there if link.rank == root else None, mine, root),
            mine,
            everything,
        )
    elif parts is None:
        recv_bytes(link, mine, root, 0, longest)
    else:
        for rank, part in enumerate(parts):
            if rank == root:
                mine[...] = part
            else:
                send_bytes(link, part, rank, 0, longest)
    return mine


def alltoall_bytes(
    link: Link,
    parts: Sequence[np.ndarray],
    lengths: Sequence[Sequence[int]],
    longest: int = CHUNK,
) -> list[np.ndarray]:
    """Return what each rank has for this one; ``lengths[source][dest]`` are known to all."""
    into = [row[link.rank] for row in lengths]
    heaviest = max(*map(sum, lengths), *map(sum, zip(*lengths, strict=True)))
    if heaviest <= longest:
        return _alltoall_at_once(link, parts, into)
    received = [np.empty(length, np.uint8) for length in into]
    step = max(longest // link.size, 1)
    for begin in range(0, max(map(max, lengths)), step):
        window = slice(begin, begin + step)
        fresh = [part[window] for part in received]
        pieces = _alltoall_at_once(link, [p[window] for p in parts], [p.size for p in fresh])
        for place, piece in zip(fresh, pieces, strict=True):
            place[...] = piece
    return received


def _alltoall_at_once(
    link: Link, parts: Sequence[np.ndarray], into: Sequence[int]
) -> list[np.ndarray]:
    away = [part.size for part in parts]
    sent, everything = np.concatenate(parts), np.empty(sum(into), np.uint8)
    there = [sent, (away, _offsets(away)), mpi().BYTE]
    here = [everything, (list(into), _offsets(into)), mpi().BYTE]
    link.run(lambda comm: comm.Ialltoallv(there, here), sent, everything)
    return _cut(everything, into)


def send_note(link: Link, note: bytes, dest: int, tag: int, *, eager: bool = False) -> None:
    """Send a note to one rank, which calls ``recv_note``; local.

    Returns when it is being received; ``eager`` lets MPI keep a short one.
    """
    head = _head(note)
    if eager:
        link.send(lambda comm: comm.Isend(head, dest, tag), dest, head)
    else:
        link.send(lambda comm: comm.Issend(head, dest, tag), dest, head)
    if len(note) > INLINE:
        send_bytes(link, as_bytes_of(note), dest, tag)


def recv_note(link: Link, source: int, tag: int) -> bytes:
    """Receive a note; local."""
    head = np.empty(NOTE, np.uint8)
    link.receive(lambda comm: comm.Irecv(head, source, tag), source, head)
    length = _length(head)
    if length <= INLINE:
        return head[_HEAD : _HEAD + length].tobytes()
    whole = np.empty(length, np.uint8)
    recv_bytes(link, whole, source, tag)
    return whole.tobytes()


def send_bytes(link: Link, data: np.ndarray, dest: int, tag: int, longest: int = CHUNK) -> None:
    """Send bytes to one rank, which knows their number; local."""
    for piece in _pieces(data, longest):
        link.send(lambda comm, piece=piece: comm.Issend(piece, dest, tag), dest, piece)


def recv_bytes(link: Link, data: np.ndarray, source: int, tag: int, longest: int = CHUNK) -> None:
    """Receive into ``data`` what ``source`` sends by ``send_bytes``; local."""
    for piece in _pieces(data, longest):
        link.receive(lambda comm, piece=piece: comm.Irecv(piece, source, tag), source, piece)


def probe(
    link: Link, source: int | None, tag: int | None, status: MPI.Status | None = None
) -> tuple[int, int]:
    """Wait for a message and return its source and tag, without receiving it; local.

    None stands for any. An interrupt or a timeout here leaves nothing undone.
    """
    MPI = mpi()
    status = MPI.Status() if status is None else status
    comm = link.comm
    peer = MPI.ANY_SOURCE if source is None else source
    label = MPI.ANY_TAG if tag is None else tag
    what = "a message" if source is None else f"rank {source}"
    link.wait(lambda: comm.Iprobe(peer, label, status), what)
    return status.Get_source(), status.Get_tag()


def as_bytes_of(payload: Any) -> np.ndarray:
    """View a bytes-like object as flat uint8."""
    return np.frombuffer(payload, np.uint8)


def _head(note: bytes) -> np.ndarray:
    head = np.zeros(NOTE, np.uint8)
    head[:_HEAD].view(np.int64)[0] = len(note)
    if len(note) <= INLINE:
        head[_HEAD : _HEAD + len(note)] = as_bytes_of(note)
    return head


def _length(head: np.ndarray) -> int:
    return int(head[:_HEAD].view(np.int64)[0])


def _pieces(data: np.ndarray, longest: int) -> list[np.ndarray]:
    return [data[i : i + longest] for i in range(0, data.size, longest)]


def _offsets(lengths: Sequence[int]) -> list[int]:
    return [0, *np.cumsum(lengths)[:-1].tolist()]


def _cut(data: np.ndarray, lengths: Sequence[int]) -> list[np.ndarray]:
    return [data[i : i + n] for i, n in zip(_offsets(lengths), lengths, strict=True)]
