"""In which system call a thread of this process waits, in words (Linux).

A thread may always look at others of its process; another process would need a permission.
"""

from __future__ import annotations

import functools
import mmap
import os
import platform

_LONGEST_PATH = 4096
_PAGE = mmap.PAGESIZE
_X86_64 = {
    0: "reads",
    1: "writes",
    2: "opens",
    17: "reads",
    18: "writes",
    19: "reads",
    20: "writes",
    35: "sleeps",
    42: "connects",
    43: "accepts",
    44: "writes",
    45: "reads",
    46: "writes",
    47: "reads",
    61: "waits for a child process",
    73: "waits for a lock on",
    74: "flushes",
    230: "sleeps",
    247: "waits for a child process",
    257: "opens",
    288: "accepts",
}
_AARCH64 = {
    32: "waits for a lock on",
    56: "opens",
    63: "reads",
    64: "writes",
    65: "reads",
    66: "writes",
    67: "reads",
    68: "writes",
    82: "flushes",
    95: "waits for a child process",
    101: "sleeps",
    115: "sleeps",
    202: "accepts",
    203: "connects",
    206: "writes",
    207: "reads",
    211: "writes",
    212: "reads",
    242: "accepts",
    260: "waits for a child process",
}
_ALONE = ("sleeps", "waits for a child process")
_OPENS_AT = {"x86_64": 257, "aarch64": 56}


def blocked_in(thread: int) -> str:
    """What the system does for a thread, such as ``reads /data/train.bin``; empty if unknown.

    Waits for locks are not told: a thread that waits for Python's own does nothing else.
    """
    try:
        with open(f"/proc/self/task/{thread}/syscall") as file:
            words = file.read().split()
    except OSError:
        return ""
    machine = platform.machine()
    if len(words) < 3 or not words[0].isdigit():
        return ""  # it runs
    number = int(words[0])
    verb = _verbs(machine).get(number, "")
    if not verb or verb in _ALONE:
        return verb
    if verb == "opens":
        path = _text_at(int(words[2 if number == _OPENS_AT[machine] else 1], 16))
        return f"opens {path}" if path else verb
    return f"{verb} {_file(int(words[1], 16))}"


@functools.cache
def _verbs(machine: str) -> dict[int, str]:
    return {"x86_64": _X86_64, "aarch64": _AARCH64}.get(machine, {})


def _file(descriptor: int) -> str:
    try:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return f"file {descriptor}"
    kind = path.partition(":")[0]
    return f"a {kind}" if kind in ("pipe", "socket") else path


def _text_at(address: int) -> str:
    """A C string of this process; by the file of its memory, so that a bad address is no crash."""
    try:
        memory = os.open("/proc/self/mem", os.O_RDONLY)
    except OSError:
        return ""
    data = b""
    try:
        while b"\0" not in data and len(data) < _LONGEST_PATH:
            at = address + len(data)
            # The page after that in which it ends need not be there.
            data += os.pread(memory, _PAGE - at % _PAGE, at)
    except OSError:
        return ""
    finally:
        os.close(memory)
    return os.fsdecode(data.partition(b"\0")[0])
