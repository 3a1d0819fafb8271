"""One entry of a value as ranks compare it: what it is, and a digest."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

WORDS = 60
"""Characters of a value that are shown."""
PIECE = 1 << 24
"""Bytes of an array that does not lie in one piece, hashed at a time."""


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
    """What an array consists of; if ``items``, its numbers mean nothing by themselves."""
    nans: bool = False
    """Some of the numbers are NaN."""
    unknown: tuple[str, ...] = ()
    """Kinds of things in it (a lock, a generator) of which only the type is known."""
    depth: int = 0
    """How many parts deep it lies in the value."""
    same: str | None = None
    """Path of the entry that is this very object; its parts stand there."""


def leaf_of(kind: str, text: str, identity: bytes = b"", unknown: tuple[str, ...] = ()) -> Leaf:
    """An entry that is no array; it is what ``identity`` says or else ``text``."""
    said = identity or text.encode(errors="surrogatepass")
    digest = hashlib.blake2b(kind.encode() + b"\0" + said, digest_size=8)
    shown = text if len(text) <= WORDS else f"{text[:WORDS]}…"
    return Leaf(kind, shown, digest.digest(), unknown=unknown)


def array_of(value: Any) -> Any:
    """The value as an array to compare number by number; None if it is none."""
    if isinstance(value, np.ndarray):
        return np.asarray(value) if is_numbers(value) else None
    if str(type(value).__module__).partition(".")[0] == "cupy" and hasattr(value, "dtype"):
        return value
    chainer = sys.modules.get("chainer")
    if chainer is not None and isinstance(value, chainer.Variable):
        return value.array  # None while a parameter is not initialized
    return None


def is_numbers(array: np.ndarray) -> bool:
    """Whether an array is what its elements are, and has neither objects, mask nor attributes."""
    if array.dtype.hasobject or isinstance(array, np.ma.MaskedArray):
        return False
    return str(type(array).__module__).startswith("numpy") or not getattr(array, "__dict__", None)


def on_host(array: Any) -> np.ndarray:
    """The array in this process's memory."""
    return array.get() if hasattr(array, "get") else array


def array_kind(value: Any, array: Any) -> str:
    """The kind of a value that is such an array."""
    own = isinstance(value, np.ndarray) and type(value) not in (np.ndarray, np.memmap)
    return f"{f'{type(value).__name__} ' if own else ''}{array.dtype} {array.shape}"


def array_leaf(array: Any, kind: str, unit: str = "elements") -> Leaf:
    """The entry of an array."""
    host = on_host(array)
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
