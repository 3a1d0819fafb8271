"""Moves bytes and arrays between the ranks of a link, by non-blocking MPI.

Every function is collective over the link, except ``send_bytes`` and ``recv_bytes``.
Arrays are NumPy, contiguous, of a dtype that MPI knows; callers see to that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nbmn.communicators.link import Link, Pending
from nbmn.communicators.runtime import mpi

CHUNK = 256 * 1024 * 1024
"""Longest single message in bytes, unless the caller names another."""


def start_max(link: Link, values: np.ndarray) -> Pending:
    """Begin the elementwise maximum over ranks, in place."""
    return link.start(lambda comm: comm.Iallreduce(mpi().IN_PLACE, values, mpi().MAX), values)


def sum_in_place(link: Link, values: np.ndarray) -> None:
    """Replace ``values`` by its sum over ranks."""
    if link.size > 1:
        link.run(lambda comm: comm.Iallreduce(mpi().IN_PLACE, values, mpi().SUM), values)


def barrier(link: Link) -> None:
    """Return when all ranks have called."""
    link.run(lambda comm: comm.Ibarrier())


def bcast_in_place(link: Link, values: np.ndarray, root: int) -> None:
    """Overwrite ``values`` with the root's, in messages of ``CHUNK`` bytes at most."""
    link.check_peer(root)
    for piece in _pieces(as_bytes(values), CHUNK):
        link.run(lambda comm, piece=piece: comm.Ibcast(piece, root), piece)


def bcast_bytes(
    link: Link, payload: bytes | None, root: int, max_buf_len: int = CHUNK
) -> np.ndarray:
    """Return the root's payload, as uint8; the payloads of other ranks are ignored."""
    link.check_peer(root)
    mine = np.frombuffer(payload if payload is not None else b"", np.uint8)
    length = np.array([mine.size], np.int64)
    link.run(lambda comm: comm.Ibcast(length, root), length)
    data = mine if link.rank == root else np.empty(int(length[0]), np.uint8)
    for piece in _pieces(data, max_buf_len):
        link.run(lambda comm, piece=piece: comm.Ibcast(piece, root), piece)
    return data


def allgather_int(link: Link, value: int) -> list[int]:
    """Return one int64 of each rank, in rank order."""
    mine = np.array([value], np.int64)
    everyone = np.empty(link.size, np.int64)
    link.run(lambda comm: comm.Iallgather(mine, everyone), mine, everyone)
    return everyone.tolist()


def allgather_bytes(link: Link, payload: bytes, lengths: Sequence[int]) -> list[np.ndarray]:
    """Return the payload of each rank; ``lengths`` are already known to all."""
    mine = np.frombuffer(payload, np.uint8)
    everything = np.empty(sum(lengths), np.uint8)
    counts = (list(lengths), _offsets(lengths))
    link.run(
        lambda comm: comm.Iallgatherv(mine, [everything, counts, mpi().BYTE]), mine, everything
    )
    return _cut(everything, lengths)


def gather_bytes(
    link: Link, payload: bytes, lengths: Sequence[int], root: int
) -> list[np.ndarray] | None:
    """Return the payload of each rank at the root, None elsewhere."""
    link.check_peer(root)
    mine = np.frombuffer(payload, np.uint8)
    if link.rank != root:
        link.run(lambda comm: comm.Igatherv(mine, None, root), mine)
        return None
    everything = np.empty(sum(lengths), np.uint8)
    counts = (list(lengths), _offsets(lengths))
    link.run(
        lambda comm: comm.Igatherv(mine, [everything, counts, mpi().BYTE], root), mine, everything
    )
    return _cut(everything, lengths)


def send_bytes(link: Link, payload: Any, dest: int, tag: int, max_buf_len: int = CHUNK) -> None:
    """Send bytes-like ``payload`` to one rank, which calls ``recv_bytes``; local."""
    data = np.frombuffer(payload, np.uint8)
    length = np.array([data.size], np.int64)
    for piece in (length, *_pieces(data, max_buf_len)):
        link.send(lambda comm, piece=piece: comm.Issend(piece, dest, tag), dest, piece)


def recv_bytes(link: Link, source: int, tag: int, max_buf_len: int = CHUNK) -> np.ndarray:
    """Receive what ``source`` sends by ``send_bytes``, as uint8; local."""
    length = np.empty(1, np.int64)
    link.receive(lambda comm: comm.Irecv(length, source, tag), source, length)
    data = np.empty(int(length[0]), np.uint8)
    for piece in _pieces(data, max_buf_len):
        link.receive(lambda comm, piece=piece: comm.Irecv(piece, source, tag), source, piece)
    return data


def as_bytes(values: np.ndarray) -> np.ndarray:
    """View a contiguous array of any dtype as flat uint8."""
    return values.reshape(-1).view(np.uint8)


def _pieces(data: np.ndarray, longest: int) -> list[np.ndarray]:
    return [data[i : i + longest] for i in range(0, data.size, longest)]


def _offsets(lengths: Sequence[int]) -> list[int]:
    return [0, *np.cumsum(lengths)[:-1].tolist()]


def _cut(data: np.ndarray, lengths: Sequence[int]) -> list[np.ndarray]:
    return [data[i : i + n] for i, n in zip(_offsets(lengths), lengths, strict=True)]
