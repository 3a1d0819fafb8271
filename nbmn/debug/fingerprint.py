"""What a value consists of on this rank, in short: one entry for each of its parts.

Ranks compare fingerprints first, and move only the arrays whose digests differ.
Nothing of the value is changed, and no example of a dataset is read.
"""

from __future__ import annotations

import hashlib
import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nbmn.debug.parts import Opaque, parts

MOST = 10_000
"""Entries told apart; what comes after them is folded into one."""
MANY = 1000
"""Items of a list up to which each is an entry of its own."""
WORDS = 60
"""Characters of a value that are shown."""
PIECE = 1 << 24
"""Bytes of an array that does not lie in one piece, hashed at a time."""
ITEMS = "items"
"""What a long list is said to consist of, when its items are compared by digests."""
REST = "…"
"""Path of the entry that holds what is left."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """One entry of a value."""

    kind: str
    """Its type; of an array dtype and shape, such as ``float32 (3, 4)``."""
    text: str
    """Its value, shortened."""
    digest: bytes
    """8 bytes of what it is, kind included."""
    shape: tuple[int, ...] | None = None
    """Of an array whose numbers can be compared one by one."""
    unit: str = "elements"
    """What an array consists of; if :data:`ITEMS`, its numbers mean nothing by themselves."""
    nans: bool = False
    """Some of the numbers are NaN."""
    compared: bool = True
    """False: of such a thing (a lock, a generator) only the type is known."""


@dataclass(slots=True)
class Fingerprint:
    """A value's entries, and its arrays for a closer look."""

    leaves: dict[str, Leaf] = field(default_factory=dict)
    """By path, such as ``/l1/W`` in a link or ``['lr']`` in a dict; parents first."""
    arrays: dict[str, Any] = field(default_factory=dict)
    """NumPy or CuPy, by path: the value's own, not copies."""


def fingerprint(value: Any) -> Fingerprint:
    """Take the fingerprint of a value; local."""
    found = Fingerprint()
    rest = hashlib.blake2b(digest_size=8)
    left = 0
    for path, leaf, array in walk(value):
        if len(found.leaves) < MOST:
            found.leaves[path] = leaf
            if array is not None:
                found.arrays[path] = array
        else:
            left += 1
            rest.update(path.encode() + leaf.digest)
    if left:
        text = f"{left} more entries"
        found.leaves[REST] = Leaf("entries", text, rest.digest())
    return found


def walk(
    value: Any, path: str = "", within: tuple[int, ...] = ()
) -> Iterator[tuple[str, Leaf, Any]]:
    """Give each entry with its path and, where it is one, its array; parents first."""
    if id(value) in within:
        yield path, leaf_of("reference", "itself, further out"), None
        return
    array = array_of(value)
    if array is not None:
        yield path, array_leaf(array), array
        return
    if isinstance(value, (list, tuple, deque)) and len(value) > MANY:
        array, unit = condensed(value)
        yield path, array_leaf(array, f"{type(value).__name__} of {len(value)}", unit), array
        return
    try:
        about = parts(value)
    except Exception as error:  # noqa: BLE001 - it asks the user's own objects
        about = Opaque(f"{type(value).__name__} ({type(error).__name__}: {error})")
    if isinstance(about, Opaque):
        yield path, leaf_of(about.kind, about.kind, compared=False), None
        return
    yield path, leaf_of(about.kind, about.text, about.identity), None
    for suffix, child in about.children:
        yield from walk(child, path + suffix, (*within, id(value)))


def array_of(value: Any) -> Any:
    """The value as an array to compare number by number; None if it is none."""
    if isinstance(value, np.ndarray):
        return None if value.dtype.hasobject else value
    if type(value).__module__.partition(".")[0] == "cupy" and hasattr(value, "dtype"):
        return value
    chainer = sys.modules.get("chainer")
    if chainer is not None and isinstance(value, chainer.Variable):
        return value.array  # None while a parameter is not initialized
    return None


def on_host(array: Any) -> np.ndarray:
    """The array in this process's memory."""
    return array.get() if hasattr(array, "get") else array


def array_leaf(array: Any, kind: str = "", unit: str = "elements") -> Leaf:
    """The entry of an array."""
    host = on_host(array)
    kind = kind or f"{host.dtype} {host.shape}"
    digest = hashlib.blake2b(kind.encode(), digest_size=8)
    for piece in pieces(host):
        digest.update(piece)
    return Leaf(kind, kind, digest.digest(), host.shape, unit, has_nans(host))


def pieces(array: np.ndarray) -> Iterator[memoryview]:
    """The bytes of an array in the order of its indices, with little copied at a time."""
    if array.flags.c_contiguous:
        yield memoryview(array.reshape(-1).view(np.uint8))
        return
    flat, step = array.flat, max(1, PIECE // max(1, array.itemsize))
    for begin in range(0, array.size, step):
        yield memoryview(flat[begin : begin + step].view(np.uint8))


def has_nans(array: np.ndarray) -> bool:
    """Whether any number is NaN. A minimum is, if one is; it needs no second array."""
    if array.dtype.kind not in "fc" or array.size == 0:
        return False
    with np.errstate(invalid="ignore"):
        return bool(np.isnan(array.min()))


def condensed(items: Any) -> tuple[np.ndarray, str]:
    """A long list as an array: its own numbers, or a digest (uint64) of each item."""
    if set(map(type, items)) == {float}:
        return np.array(items), "elements"
    return np.array([number_of(item) for item in items], np.uint64), ITEMS


def number_of(item: Any) -> int:
    """64 bits of a value."""
    digest = hashlib.blake2b(digest_size=8)
    for path, leaf, _ in walk(item):
        digest.update(path.encode() + leaf.digest)
    return int.from_bytes(digest.digest(), "little")


def leaf_of(kind: str, text: str, identity: bytes = b"", compared: bool = True) -> Leaf:
    """An entry that is no array; it is what ``identity`` says or else ``text``."""
    digest = hashlib.blake2b(kind.encode() + b"\0" + (identity or text.encode()), digest_size=8)
    shown = text if len(text) <= WORDS else f"{text[:WORDS]}…"
    return Leaf(kind, shown, digest.digest(), compared=compared)
