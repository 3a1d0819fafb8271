"""What this process did in its last steps: phases with begin, end and the user's line.

Optimizers and ``%mn_train`` mark the phases they know; a loop of one's own marks others by
``with nbmn.phase("data"):``. A ring keeps the last ones. Marking costs some microseconds.
"""

from __future__ import annotations

import functools
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import CodeType, FrameType

KEPT = 4096
"""Phases in the ring."""
RUNS = 64
"""Runs that are remembered."""
STEP = "update"
"""The phase that ends a step."""
CODES = 4096
"""Functions of which it is remembered whether they are a library's."""

# Lines inside these say nothing to the user, who called them.
_LIBRARIES = frozenset({"nbmn", "chainer", "chainermn", "contextlib"})

_now = time.monotonic
_frame = sys._getframe
_thread = threading.get_ident


@dataclass(frozen=True, slots=True)
class Phase:
    """A stretch of time in which this process did one thing."""

    name: str
    """Such as ``data``, ``forward``, ``backward``, ``update``."""
    begin: float
    """On the clock of ``time.monotonic`` (seconds), which processes of a host share."""
    end: float | None
    """None while it lasts."""
    file: str
    """The user's file: of the innermost frame outside nbmn and Chainer."""
    line: int
    """The user's line, counted from 1."""


@dataclass(frozen=True, slots=True)
class Run:
    """Something that this rank was asked to do, such as a cell; it lasts until the next."""

    name: str
    begin: float
    traced: bool
    """Whether its work is the user's, rather than a comparison of variables, say."""


class Phases:
    """The ring of a process; of its main thread, others are not recorded."""

    def __init__(self) -> None:
        self._main = threading.main_thread().ident
        self._ring: deque[tuple[str, float, float, str, int]] = deque(maxlen=KEPT)
        self._open: list[phase] = []
        self._runs: deque[Run] = deque(maxlen=RUNS)
        self._reports: deque[float] = deque(maxlen=KEPT)
        self._mark: tuple[str, float] | None = None
        self._follows = False
        # By id; the code is kept, so that its id stays its own.
        self._libraries: dict[int, tuple[CodeType, bool]] = {}

    def all(self) -> tuple[Phase, ...]:
        """What is in the ring, in the order in which it ended, and what lasts; from any thread."""
        done = [Phase(*row) for row in list(self._ring)]
        lasting = [Phase(p.name, p.begin, None, p.file, p.line) for p in list(self._open)]
        return (*done, *lasting)

    def runs(self) -> tuple[Run, ...]:
        """The last runs, oldest first; from any thread."""
        return tuple(self._runs)

    def reports(self) -> tuple[float, ...]:
        """When steps were reported last; from any thread."""
        return tuple(self._reports)

    def begin_run(self, name: str, traced: bool = True) -> None:
        """A run begins; local."""
        self._runs.append(Run(name, _now(), traced))

    def report_step(self) -> None:
        """A step was reported, which ends it where no phase does. Local."""
        self._reports.append(_now())

    @contextmanager
    def trainer(self) -> Iterator[None]:
        """While a trainer runs: what is between updates is ``data`` or ``extensions``."""
        self._follows = True
        self.mark("data")
        try:
            yield
        finally:
            self._follows, self._mark = False, None

    def mark(self, name: str) -> None:
        """From here to the next :meth:`reach` is a phase of that name, in a trainer. Local."""
        if self._follows:
            self._mark = name, _now()

    def reach(self) -> None:
        """End what :meth:`mark` has begun, if it has. Local."""
        mark, self._mark = self._mark, None
        if mark is not None:
            self._ring.append((*mark, _now(), *self.users_line(_frame(1))))

    def close_all(self) -> None:
        """Forget phases that an interrupt has left open; local, before a cell begins."""
        self._open.clear()

    def users_line(self, frame: FrameType | None) -> tuple[str, int]:
        """File and line of the innermost frame outside nbmn and Chainer; local."""
        known = self._libraries
        while frame is not None:
            code = frame.f_code
            entry = known.get(id(code)) or self._classify(frame)
            if not entry[1]:
                return code.co_filename, frame.f_lineno or 0
            frame = frame.f_back
        return "", 0

    def _classify(self, frame: FrameType) -> tuple[CodeType, bool]:
        if len(self._libraries) >= CODES:
            self._libraries.clear()
        name = frame.f_globals.get("__name__") or ""
        library = name.partition(".")[0] in _LIBRARIES
        entry = self._libraries[id(frame.f_code)] = frame.f_code, library
        return entry


class phase:
    """Mark what a loop does, for ``%mn_trace``; local.

    A phase named ``update`` ends a step. In a loop without one each :func:`nbmn.report` does;
    where there is neither, ``%mn_trace`` shows the last cell as a whole.

    Parameters
    ----------
    name
        Any; ``data``, ``forward``, ``backward``, ``update`` have colours of their own.

    Examples
    --------
    >>> with phase("data"):
    ...     batch = [1, 2, 3]
    """

    __slots__ = ("begin", "file", "line", "name")

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> None:
        ring = phases()
        self.file, self.line = ring.users_line(_frame(1))
        self.begin = _now()
        if _thread() == ring._main:
            ring._open.append(self)

    def __exit__(self, *_: object) -> None:
        end = _now()
        ring = phases()
        if _thread() == ring._main:
            # An interrupt may have left others open.
            while ring._open and ring._open.pop() is not self:
                pass
            ring._ring.append((self.name, self.begin, end, self.file, self.line))


@functools.cache
def phases() -> Phases:
    """The ring of this process."""
    return Phases()
