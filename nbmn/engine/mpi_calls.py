"""Which of MPI's own calls, by mpi4py, a thread is in.

Nothing of mpi4py is touched: the line that calls it says what is called. So it is told where a
rank waits in a call that nbmn knows nothing of.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import linecache
from types import FrameType, ModuleType
from typing import Any

from nbmn.communicators.callers import Origin, origin

LONGEST = 80
"""Characters of a call that are shown."""
_LOOKED_INTO = ("mpi4py", "nbmn")
"""Packages whose attributes may be asked for: properties of others may do anything."""
_BLOCKING = frozenset(
    {
        *("Barrier", "Bcast", "Reduce", "Allreduce", "Reduce_scatter", "Reduce_scatter_block"),
        *("Gather", "Gatherv", "Scatter", "Scatterv", "Allgather", "Allgatherv", "Scan", "Exscan"),
        *("Alltoall", "Alltoallv", "Alltoallw", "Send", "Ssend", "Recv", "Sendrecv", "Probe"),
        *("Mprobe", "Sendrecv_replace", "Wait", "Waitall", "Waitany", "Waitsome", "Fence"),
    }
)
"""Methods of mpi4py that wait for other ranks; for objects they have small initials."""


def mpi_call(frame: FrameType | None, sure: bool = False) -> str:
    """The call that a frame is at, such as ``calls MPI.COMM_WORLD.Barrier()``; empty if it is at
    none of mpi4py's. Local, from any thread.

    Parameters
    ----------
    frame
        The innermost of a thread: what mpi4py does has none of its own.
    sure
        Not where only the name of the method speaks for it.
    """
    if frame is None or origin(frame) is Origin.LIBRARY:
        return ""
    text = _current(frame)
    # Not the arguments yet: Python may warn of what is written there, each time it reads them.
    method = _parsed(text.partition("(")[0])
    if not isinstance(method, ast.Attribute) or not _is_mpis(method, frame, sure):
        return ""
    if not isinstance(_parsed(text), ast.Call):
        return ""
    said = " ".join(text.split())
    return f"calls {said if len(said) <= LONGEST else f'{said[:LONGEST]}…'}"


def _parsed(text: str) -> ast.expr | None:
    try:
        return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError):
        return None


def _is_mpis(method: ast.Attribute, frame: FrameType, sure: bool) -> bool:
    code = frame.f_code
    names = {node.id for node in ast.walk(method) if isinstance(node, ast.Name)}
    if code.co_flags & inspect.CO_OPTIMIZED and names & {
        *(*code.co_varnames, *code.co_cellvars, *code.co_freevars)
    }:
        # Before Python 3.13 a look at a function's variables leaves a copy of all of them there,
        # which keeps arrays in memory.
        return not sure and method.attr.capitalize() in _BLOCKING
    return _package(_found(method.value, frame)) == "mpi4py"


def _current(frame: FrameType) -> str:
    """The expression that a frame is at."""
    places = itertools.islice(frame.f_code.co_positions(), max(frame.f_lasti, 0) // 2, None)
    first, last, begin, end = next(places, (None, None, None, None))
    if first is None or last is None or begin is None or end is None:
        return ""
    file, names = frame.f_code.co_filename, frame.f_globals
    lines = [linecache.getline(file, line, names).encode() for line in range(first, last + 1)]
    if not all(lines):
        return ""
    lines[-1] = lines[-1][:end]  # first: it may be the same line
    lines[0] = lines[0][begin:]
    return b"".join(lines).decode(errors="replace")


def _found(node: ast.expr, frame: FrameType) -> Any:
    """What a dotted name stands for there; None where asking for it might run the user's code."""
    if isinstance(node, ast.Name):
        optimized = frame.f_code.co_flags & inspect.CO_OPTIMIZED
        names = frame.f_globals if optimized else frame.f_locals
        return names.get(node.id, frame.f_globals.get(node.id))
    if not isinstance(node, ast.Attribute):
        return None
    base = _found(node.value, frame)
    if issubclass(type(base), ModuleType) or _package(base) in _LOOKED_INTO:
        return getattr(base, node.attr, None)
    try:
        return object.__getattribute__(base, "__dict__").get(node.attr)
    except AttributeError:
        return None


def _package(value: Any) -> str:
    module = value.__name__ if issubclass(type(value), ModuleType) else type(value).__module__
    return str(module).partition(".")[0]
