"""Reads what ranks have recorded, from any process on the same host.

The file is a header, a ring of entries of 64 bytes, and a table of strings. A rank writes
an entry's sequence number first and a copy of it last: where the two differ, the
rank was just writing.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import re
import struct
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

MAGIC = b"nbmnrec3"
HEADER = struct.Struct("<8sqqIId")
USED = struct.Struct("<I")
USED_AT = 28
RING = 64
ENTRY = struct.Struct("<QIIIqIIddHHHHI")
NBYTES, NBYTES_AT = struct.Struct("<q"), 20
END, END_AT = struct.Struct("<d"), 44
SHORT, DTYPE_AT = struct.Struct("<H"), 54
CAPACITY = 1024
STRINGS = 65536
LENGTH = RING + CAPACITY * ENTRY.size + STRINGS

_PREFIX = "nbmn-recorder"
_NAME = re.compile(rf"{_PREFIX}-(\d+)-(\d+)-(\d+)")
_MEMORY = Path("/dev/shm")


@dataclass(frozen=True, slots=True)
class Activity:
    """A collective or message that this rank is in."""

    operation: str
    """Its name, such as ``allreduce``."""
    since: float
    """When it began, on the clock of ``time.monotonic`` (seconds)."""
    file: str
    """The user's file: of the innermost frame outside nbmn, Chainer and Python's own library."""
    line: int
    """The user's line, counted from 1."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One collective or message that a rank has recorded."""

    sequence: int
    """Counts the entries of the rank, from 1."""
    link: int
    """Names the communicator, alike on all its ranks until it is renewed; 0 for none."""
    number: int
    """Counts the collectives on that communicator, from 1; 0 for messages."""
    operation: str
    nbytes: int
    """Of the array, or where there is none of what went through MPI so far."""
    dtype: str
    """Of the array, empty if there is none."""
    file: str
    """The user's file: of the innermost frame outside nbmn, Chainer and Python's own library."""
    line: int
    begin: float
    """On the clock of ``time.monotonic`` (seconds), which processes of a host share."""
    end: float | None
    """None while it is under way."""
    peer: int | None = None
    """Rank to which a message goes, or from which it comes; None for others and any."""
    tag: int | None = None
    """The tag of a message; None for others and any."""
    earlier: int = 0
    """Of ``number``, those begun before the notebook's cell; 0 where there are no cells."""

    @property
    def nth(self) -> int:
        """Which of the cell's collectives on that communicator it is, from 1; 0 for messages."""
        return self.number - self.earlier

    @property
    def name(self) -> str:
        """Its operation, and which it is: ``allreduce #3``."""
        return f"{self.operation} #{self.nth}" if self.nth else self.operation

    def __str__(self) -> str:
        place = f"{os.path.basename(self.file).strip('<>')}, line {self.line}"  # <cell [1]> too
        return f"{self.name}{self._ends()} ({place})"

    def _ends(self) -> str:
        if self.peer is None:
            return ""
        way = "from" if self.operation.startswith("recv") else "to"
        return f" {way} rank {self.peer}{f' with tag {self.tag}' if self.tag else ''}"


def read_recorder(source: int | str | os.PathLike[str]) -> tuple[Entry, ...]:
    """Return what a rank of this host has recorded, oldest first; local.

    Parameters
    ----------
    source
        Its process id, or the path of its file.

    Raises
    ------
    FileNotFoundError
        There is no such process, or it records nothing.
    ValueError
        The file is no recording.
    """
    return decode(_path_of(source).read_bytes())


def _path_of(source: int | str | os.PathLike[str]) -> Path:
    if not isinstance(source, int):
        return Path(source)
    for folder in _folders():
        path = folder / _name(source)
        if path.exists():
            return path
    raise FileNotFoundError(f"process {source} records nothing on this host")


def decode(data: bytes) -> tuple[Entry, ...]:
    """Return the entries of a recording, oldest first."""
    if len(data) != LENGTH or data[: len(MAGIC)] != MAGIC:
        raise ValueError("this is no recording of nbmn, or one of another version")
    used = USED.unpack_from(data, USED_AT)[0]
    strings = _strings(data, used)
    slots = ENTRY.iter_unpack(data[RING : RING + CAPACITY * ENTRY.size])
    whole = [slot for slot in slots if _complete(slot)]
    return tuple(entry(slot, strings) for slot in sorted(whole))


def _complete(slot: tuple[Any, ...]) -> bool:
    return slot[0] != 0 and slot[0] & 0xFFFFFFFF == slot[-1]


def _strings(data: Any, used: int) -> list[str]:
    at = RING + CAPACITY * ENTRY.size
    end = at + used
    found = []
    while at < end:
        length = int.from_bytes(data[at : at + 2], "little")
        found.append(bytes(data[at + 2 : at + 2 + length]).decode(errors="replace"))
        at += 2 + length
    return found


def entry(slot: tuple[Any, ...], strings: Sequence[str]) -> Entry:
    """Return what lies in a slot."""
    sequence, link, number, earlier, nbytes, file, line, begin, end, name, dtype, peer, tag, _ = (
        slot
    )

    def text(place: int) -> str:
        return strings[place] if place < len(strings) else "?"

    return Entry(
        sequence,
        link,
        number,
        text(name),
        nbytes,
        _DTYPES.get(dtype - 1, ""),
        text(file),
        line,
        begin,
        end or None,
        peer - 1 if peer else None,
        tag - 1 if tag else None,
        earlier,
    )


_DTYPES = {np.dtype(char).num: np.dtype(char).name for char in "?bhilqBHILQefdgFDGOSUVMm"}


def own_path(folder: str | os.PathLike[str] | None = None) -> Path:
    """Return where this process records."""
    return (Path(folder) if folder else _folders()[0]) / _name(os.getpid())


def _name(pid: int) -> str:
    # Where containers share a folder, or ids are used again, another's is not mistaken for it.
    return f"{_PREFIX}-{_namespace()}-{pid}-{_start_time(pid) or 0}"


def make_file(path: Path) -> mmap.mmap:
    """Make an empty recording, and map it.

    Raises
    ------
    OSError
        There is no room for it.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        # Memory that is not there must be an error now, not a SIGBUS later.
        if os.write(descriptor, bytes(LENGTH)) < LENGTH:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return mmap.mmap(descriptor, LENGTH)
    finally:
        os.close(descriptor)


def reap(folder: str | os.PathLike[str] | None = None) -> None:
    """Remove recordings of processes that are no more."""
    for place in [Path(folder)] if folder else _folders():
        for path in place.glob(f"{_PREFIX}-*"):
            match = _NAME.fullmatch(path.name)
            # Another container's processes cannot be seen from here.
            if match and int(match[1]) == _namespace():
                started = _start_time(int(match[2]))
                if started is None or started != int(match[3]):
                    remove(path)


def is_alive(path: str | os.PathLike[str]) -> bool:
    """Say whether the process that records there is still running, as far as is known."""
    match = _NAME.fullmatch(Path(path).name)
    if match is None or int(match[1]) != _namespace():
        return True
    return _start_time(int(match[2])) == int(match[3])


def remove(path: Path) -> None:
    """Remove a recording; another process may have, or may own it."""
    with contextlib.suppress(FileNotFoundError, PermissionError):
        path.unlink()


def _folders() -> list[Path]:
    places = (_MEMORY, Path(tempfile.gettempdir()))
    return [place for place in places if place.is_dir() and os.access(place, os.W_OK)]


def _namespace() -> int:
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def _start_time(pid: int) -> int | None:
    """Return what tells a process from an earlier one with its id; None if it is no more."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        if Path("/proc/self/stat").exists():
            return None
    else:
        # The name, in parentheses, may contain anything. What has ended stays listed until its
        # parent has asked how.
        state, *rest = text.rpartition(")")[2].split()
        return None if state in "ZX" else int(rest[18])
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        return 0
    return 0
