"""Digests of whole values, with all that is in them.

Each object is looked into once, however often others refer to it, and none by recursion.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from nbmn.debug.classes import is_users
from nbmn.debug.leaves import Leaf, array_kind, array_leaf, array_of, leaf_of
from nbmn.debug.parts import Opaque, Parts, is_plain, parts, plain_text, without_address

MANY = 1000
"""Items of a list up to which each is an entry of its own."""
ITEMS = "items"
"""What a long list is said to consist of, when its items are compared by digests."""
LIMIT = 5_000_000
"""Values looked into; some objects make new ones for ever."""
_FREQUENT = frozenset((bool, int, float, str, bytes, type(None)))
"""Types of values that are many, and take no more than a text to be told apart."""

Named = Sequence[tuple[str, Any]]
"""Parts, by paths that are unique within the whole."""


@dataclass(slots=True)
class _Open:
    """A value whose parts are being hashed."""

    value: Any
    digest: Any
    parts: Iterator[tuple[str, Any]]
    waits_for: str = ""


class Digests:
    """Of the values of one fingerprint; local.

    Attributes
    ----------
    unknown
        Kinds of values met of which only the type is known.
    """

    def __init__(self, limit: int = LIMIT) -> None:
        self.unknown: set[str] = set()
        self._left = limit
        # Values are kept with what is known of them: another must not get the id of one.
        self._known: dict[int, tuple[Any, bytes]] = {}
        self._arrays: dict[int, tuple[Any, Leaf, Any]] = {}
        self._within: dict[int, int] = {}
        self._users: dict[type, bool] = {}

    def of(self, value: Any) -> bytes:
        """8 bytes of a value and of all that is in it, alike for copies of it."""
        around = len(self._within)
        stack: list[_Open] = []
        try:
            found = self._enter(value, stack)
            while stack:
                found = self._go_on(stack)
            return found or b""
        finally:
            while len(self._within) > around:  # it failed half way
                self._within.popitem()

    def folded(self, value: Any) -> Leaf:
        """The entry that stands for a value and all that is in it."""
        unknown, self.unknown = self.unknown, set()
        digest = self.of(value)
        kind = type(value).__name__
        leaf = leaf_of(kind, f"{kind} and all in it", digest, tuple(sorted(self.unknown)))
        self.unknown |= unknown
        return leaf

    def array(self, value: Any) -> tuple[Leaf, Any] | None:
        """The entry and the array of an array or of a long list; None for other values."""
        if id(value) in self._arrays:
            return self._arrays[id(value)][1:]
        array = array_of(value)
        if array is not None:
            leaf = array_leaf(array, array_kind(value, array))
        elif is_long(value):
            unknown, self.unknown = self.unknown, set()
            array, unit = self._condensed(value)
            leaf = array_leaf(array, f"{type(value).__name__} of {len(value)}", unit)
            leaf = replace(leaf, unknown=tuple(sorted(self.unknown)))
            self.unknown |= unknown
        else:
            return None
        self._arrays[id(value)] = (value, leaf, array)
        return leaf, array

    def take_apart(self, value: Any) -> tuple[Leaf, Named]:
        """The entry of a value that is no array, and its parts."""
        try:
            about = parts(value)
            if isinstance(about, Parts):
                leaf = leaf_of(about.kind, about.text, about.identity)
                return leaf, [*self._class(value), *self._named(about)]
        except Exception as error:  # noqa: BLE001 - it asks the user's own objects
            said = without_address(f"{type(error).__name__}: {error}")
            about = Opaque(f"{type(value).__name__} ({said})")
        self.unknown.add(about.kind)
        return leaf_of(about.kind, about.kind, unknown=(about.kind,)), ()

    def _class(self, value: Any) -> Named:
        """Its class, where that is one of the user's, and may be defined otherwise elsewhere."""
        kind = type(value)
        if kind not in self._users:
            self._users[kind] = is_users(kind)
        return [(".__class__", kind)] if self._users[kind] and not is_plain(value) else []

    def _named(self, about: Parts) -> Named:
        found = list(about.children)
        for text, item, *values in about.nameless:
            name = f"{text} {self.of(item).hex()[:8]}"
            found += [(f"[{name}]", each) for each in values] or [(f"{{{name}}}", None)]
        if len(found) > MANY or about.nameless:
            found.sort(key=lambda part: part[0])  # a dict's order is no part of it
        if len({name for name, _ in found}) == len(found):
            return found
        times: dict[str, int] = {}
        for i, (name, part) in enumerate(found):
            times[name] = times.get(name, 0) + 1
            if times[name] > 1:
                found[i] = (f"{name}#{times[name]}", part)
        return found

    def _enter(self, value: Any, stack: list[_Open]) -> bytes | None:
        """The digest, or None after putting the value on the stack."""
        if type(value) in _FREQUENT:
            said = f"{type(value).__name__}\0{plain_text(value)}"
            return hashlib.blake2b(said.encode(errors="surrogatepass"), digest_size=8).digest()
        key = id(value)
        if key in self._known:
            return self._known[key][1]
        if key in self._within:
            return b"out %d" % (len(self._within) - self._within[key])
        self._left -= 1
        if self._left < 0:
            self.unknown.add("all that comes after the first millions of objects")
            return b"rest"
        array = self.array(value)
        if array is not None:
            return array[0].digest
        self._within[key] = len(self._within)
        leaf, named = self.take_apart(value)
        if not named:
            del self._within[key]
            return leaf.digest
        digest = hashlib.blake2b(leaf.digest, digest_size=8)
        stack.append(_Open(value, digest, iter(sorted(named, key=lambda part: part[0]))))
        return None

    def _go_on(self, stack: list[_Open]) -> bytes | None:
        """Hash parts of the innermost value until one has parts; its digest, if none has."""
        inner = stack[-1]
        for name, part in inner.parts:
            digest = self._enter(part, stack)
            if digest is None:
                inner.waits_for = name
                return None
            _add(inner.digest, name, digest)
        stack.pop()
        digest = inner.digest.digest()
        del self._within[id(inner.value)]
        self._known[id(inner.value)] = (inner.value, digest)
        if stack:
            _add(stack[-1].digest, stack[-1].waits_for, digest)
        return digest

    def _condensed(self, items: Any) -> tuple[np.ndarray, str]:
        """A long list as an array: its own numbers, or a digest (uint64) of each item."""
        if set(map(type, items)) == {float}:
            return np.array(items), "elements"
        return np.frombuffer(b"".join(_eight(self.of(item)) for item in items), np.uint64), ITEMS


def is_long(value: Any) -> bool:
    """Whether a value is a list of so many items that they are compared by digests."""
    listed = isinstance(value, (list, tuple, deque)) or (
        type(value) is np.ndarray and value.dtype.hasobject and value.ndim > 0
    )
    return listed and len(value) > MANY and not getattr(value, "__dict__", None)


def _add(digest: Any, name: str, part: bytes) -> None:
    digest.update(name.encode(errors="surrogatepass") + b"\0" + part)


def _eight(digest: bytes) -> bytes:
    return digest.ljust(8, b"\0")[:8]
