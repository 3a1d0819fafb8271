"""What this rank talks about with the others, where other threads and processes can read it.

The last collectives and messages lie in a ring of fixed entries in a memory-mapped file
(:mod:`~nbmn.communicators.recordings` reads it): a rank that is stuck need not do anything
to be looked at.
"""

from __future__ import annotations

import atexit
import mmap
import os
import threading
import time
from pathlib import Path
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

import numpy as np

from nbmn.communicators import recordings
from nbmn.communicators.callers import Origin, origin
from nbmn.communicators.recordings import (
    CAPACITY,
    END,
    END_AT,
    ENTRY,
    HEADER,
    LENGTH,
    NBYTES,
    RING,
    STRINGS,
    Activity,
    Entry,
)

if TYPE_CHECKING:
    from nbmn.communicators.link import Link

_MOST_CODES = 4096

# Looked up in the fast path.
_ident = threading.get_ident
_now = time.monotonic
_array = np.ndarray
_pack = ENTRY.pack_into
_pack_end = END.pack_into
_SIZE = ENTRY.size


class _Code:
    """A function that called."""

    __slots__ = ("code", "file", "lines", "own")

    def __init__(self, file: int, own: bool, code: CodeType) -> None:
        self.file = file
        """Number of its file's name; 0 for one of a library."""
        self.own = own
        """It is the user's."""
        # Kept, so that its id stays its own. Equal code objects may be of different files.
        self.code = code
        self.lines: dict[int, int] = {}


class Call:
    """What a thread is in, or was in last."""

    __slots__ = ("busy", "link", "open", "sequence", "traffic")

    def __init__(self) -> None:
        self.busy = False
        self.open = False
        self.sequence = 0
        self.traffic = 0
        self.link: Link | None = None


class Recorder:
    """Writes the ring of this process.

    Parameters
    ----------
    rank
        Among all ranks.
    folder
        Where the file is; by default in memory, where the system has that.
    """

    def __init__(self, rank: int, folder: str | os.PathLike[str] | None = None) -> None:
        recordings.reap(folder)
        self.path: Path | None = recordings.own_path(folder)
        """None where there is no room for a file: then only this process can read it."""
        self._pid = os.getpid()
        try:
            self._map = recordings.make_file(self.path)
        except OSError:
            recordings.remove(self.path)
            self.path = None
            self._map = mmap.mmap(-1, LENGTH)
        self._memory = memoryview(self._map)
        self._next = 0
        self.calls: dict[int, Call] = {}
        """By the number of a thread, which a later one may have again."""
        self._codes: dict[int, _Code] = {}
        self._strings: dict[str, int] = {}
        self._used = 0
        offset = time.time() - time.monotonic()
        HEADER.pack_into(self._memory, 0, recordings.MAGIC, self._pid, rank, CAPACITY, 0, offset)
        self._string("")
        atexit.register(self.close)

    def here(self) -> Call:
        """Return what the calling thread is in."""
        me = _ident()
        return self.calls.get(me) or self.calls.setdefault(me, Call())

    @property
    def busy(self) -> bool:
        """Whether the calling thread is in an operation."""
        return self.here().busy

    def begin(
        self,
        operation: str,
        link: Link | None,
        data: Any,
        frame: FrameType,
        *,
        counts: bool,
        peer: int = 0,
        tag: int = 0,
        call: Call | None = None,
    ) -> None:
        """Note that an operation begins; local.

        Parameters
        ----------
        data
            What is sent, if it is an array or a tuple of arrays.
        frame
            Where it was called; the user's innermost frame is noted.
        counts
            All ranks of the link take part: it is counted.
        peer, tag
            Of a message, each plus one; 0 where there is none.
        call
            Of this thread, where that is known.
        """
        call = call or self.here()
        nbytes = dtype = code = number = earlier = 0
        if type(data) is _array:
            kind = data.dtype
            nbytes, dtype = data.size * kind.itemsize, kind.num + 1
        elif type(data) is tuple:
            nbytes = sum(getattr(part, "nbytes", 0) for part in data)
            dtype = next((p.dtype.num + 1 for p in data if type(p) is np.ndarray), 0)
        if link is not None:
            ledger = link.ledger
            if counts:
                ledger.recorded = number = ledger.recorded + 1
                earlier = ledger.earlier
            code = ledger.code
            call.traffic = ledger.traffic
        codes = self._codes
        caller: FrameType | None = frame
        file = line = 0
        while caller is not None:
            known = codes.get(id(caller.f_code)) or self._classify(caller)
            if known.file and (known.own or not file):
                file, at = known.file, caller.f_lasti
                # Python finds a line by reading a table from its beginning.
                line = known.lines.get(at) or known.lines.setdefault(at, caller.f_lineno or 0)
                if known.own:
                    break
            caller = caller.f_back
        name = self._strings.get(operation)
        if name is None:
            name = self._string(operation)
        # Without a call in between, so that no other thread takes the same.
        self._next = sequence = self._next + 1
        _pack(
            self._memory,
            RING + (sequence - 1) % CAPACITY * _SIZE,
            sequence,
            code,
            number,
            earlier,
            nbytes,
            file,
            line,
            _now(),
            0.0,
            name,
            dtype,
            peer,
            tag,
            sequence & 0xFFFFFFFF,
        )
        call.sequence = sequence
        call.link = link if nbytes == 0 else None
        call.open = True
        call.busy = True

    def end(self, call: Call | None = None) -> None:
        """Note that what this thread is in is over, however it ended; local."""
        call = call or self.here()
        call.busy = False
        if call.open:
            call.open = False
            base = self._base(call)
            if base is None:
                return
            link = call.link
            if link is not None:
                moved = link.ledger.traffic - call.traffic
                NBYTES.pack_into(self._memory, base + recordings.NBYTES_AT, moved)
            _pack_end(self._memory, base + END_AT, _now())

    def describe(self, nbytes: int, dtype: np.dtype | None = None) -> None:
        """Say what the operation under way is about, where its argument does not; local."""
        call = self.here()
        base = self._base(call)
        if call.busy and base is not None:
            call.link = None
            NBYTES.pack_into(self._memory, base + recordings.NBYTES_AT, nbytes)
            if dtype is not None:
                at = base + recordings.DTYPE_AT
                recordings.SHORT.pack_into(self._memory, at, dtype.num + 1)

    def entries(self) -> tuple[Entry, ...]:
        """Return what is in the ring, oldest first; local, from any thread."""
        return recordings.decode(bytes(self._memory))

    def last(self, thread: int | None = None) -> Entry | None:
        """Return the newest entry of a thread, by default of the calling one.

        Local, from any thread, takes microseconds.
        """
        call = self.calls.get(_ident() if thread is None else thread)
        return None if call is None else self._entry(call)

    def snapshot(self) -> Activity | None:
        """Return what is going on, None between operations; local, from any thread."""
        calls = [call for call in list(self.calls.values()) if call.open]
        newest = max(calls, key=lambda call: call.sequence, default=None)
        entry = None if newest is None else self._entry(newest)
        if entry is None or entry.end is not None:
            return None
        return Activity(entry.operation, entry.begin, entry.file, entry.line)

    def _entry(self, call: Call) -> Entry | None:
        base = self._base(call)
        if base is None:
            return None
        return recordings.entry(ENTRY.unpack_from(self._memory, base), list(self._strings))

    def _base(self, call: Call) -> int | None:
        """Return where a call is recorded; None where others have taken the place since."""
        sequence = call.sequence
        if sequence == 0 or self._next - sequence >= CAPACITY:
            return None
        return RING + (sequence - 1) % CAPACITY * _SIZE

    def close(self) -> None:
        """Remove the file."""
        # A fork inherits this object, but the file is not its own.
        if os.getpid() == self._pid and self.path is not None:
            recordings.remove(self.path)

    def _classify(self, frame: FrameType) -> _Code:
        if len(self._codes) >= _MOST_CODES:
            self._codes.clear()
        whose = origin(frame)
        file = 0 if whose is Origin.LIBRARY else self._string(frame.f_code.co_filename)
        known = self._codes[id(frame.f_code)] = _Code(file, whose is Origin.OWN, frame.f_code)
        return known

    def _string(self, text: str) -> int:
        known = self._strings.get(text)
        if known is not None:
            return known
        data = text.encode(errors="replace")[-1000:]
        if self._used + 2 + len(data) > STRINGS:
            # Each notebook cell is a file: after some thousands the ring starts anew.
            self._memory[RING:LENGTH] = bytes(LENGTH - RING)
            self._strings.clear()
            self._codes.clear()
            self._used = 0
            self._string("")
        number = len(self._strings)
        at = RING + CAPACITY * ENTRY.size + self._used
        self._memory[at : at + 2] = len(data).to_bytes(2, "little")
        self._memory[at + 2 : at + 2 + len(data)] = data
        self._used += 2 + len(data)
        recordings.USED.pack_into(self._memory, recordings.USED_AT, self._used)
        self._strings[text] = number
        return number
