"""Files in memory, without names: they are gone when nobody has them open any more (Linux)."""

from __future__ import annotations

import ctypes
import errno
import os

_CLOSE_ON_EXEC = 1


def create(name: str) -> int:
    """Return the descriptor of a new, empty file; what it is called is only for who looks at it.

    Raises
    ------
    OSError
        This system has no such files, or not now.
    """
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name)
    # A Python that was built for older systems lacks it; the C library that it runs with has it.
    try:
        call = ctypes.CDLL(None, use_errno=True).memfd_create
    except (AttributeError, TypeError):
        raise OSError(errno.ENOSYS, "neither Python nor the C library has memfd_create") from None
    descriptor = call(name.encode(), ctypes.c_uint(_CLOSE_ON_EXEC))
    if descriptor < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return descriptor
