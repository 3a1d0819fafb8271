"""What a value consists of on this rank, in short: one entry for each of its parts.

Ranks compare fingerprints first, and move only the arrays whose digests differ.
Nothing of the value is changed, and no example of a dataset is read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from nbmn.debug.digests import Digests
from nbmn.debug.leaves import Leaf, leaf_of

MOST = 10_000
"""Entries told apart; what comes after them is folded into one."""
DEEP = 100
"""Parts within parts that are told apart; what lies deeper is folded into one."""
REST = "…"
"""Path of the entry that holds what is left."""


@dataclass(slots=True)
class Fingerprint:
    """A value's entries, and its arrays for a closer look."""

    leaves: dict[str, Leaf] = field(default_factory=dict)
    """By path, such as ``/l1/W`` in a link or ``['lr']`` in a dict; parents first."""
    arrays: dict[str, Any] = field(default_factory=dict)
    """NumPy or CuPy, by path: the value's own, not copies."""


def fingerprint(value: Any) -> Fingerprint:
    """Take the fingerprint of a value; local.

    An object that is a part of several others has its parts once, under its first path; the
    other entries say that they are the same as that one.
    """
    walk = _Walk()
    walk.through(value)
    return walk.found


class _Walk:
    def __init__(self) -> None:
        self.found = Fingerprint()
        self._digests = Digests()
        # Values are kept: another must not get the id of one while it is remembered.
        self._seen: dict[int, tuple[Any, str]] = {}

    def through(self, value: Any) -> None:
        leaves, rest, left = self.found.leaves, hashlib.blake2b(digest_size=8), 0
        stack: list[tuple[str, Iterator[tuple[str, Any]]]] = [("", iter([("", value)]))]
        while stack:
            outer, parts = stack[-1]
            name, part = next(parts, (None, None))
            if name is None:
                stack.pop()
                continue
            path = outer + name
            if len(leaves) < MOST:
                stack.append((path, self._visit(path, part, len(stack) - 1)))
                continue
            if not left:
                self._digests.unknown.clear()
            left += 1
            rest.update(path.encode(errors="surrogatepass") + self._digests.of(part))
        if left:
            text = f"{left:,} more entries"
            unknown = tuple(sorted(self._digests.unknown))
            leaves[REST] = replace(leaf_of("entries", text, rest.digest(), unknown), depth=1)

    def _visit(self, path: str, value: Any, depth: int) -> Iterator[tuple[str, Any]]:
        """Note an entry, and give the parts that are still to be noted."""
        leaf, parts = self._look(path, value, depth)
        self.found.leaves[path] = replace(leaf, depth=depth)
        return iter(parts)

    def _look(self, path: str, value: Any, depth: int) -> tuple[Leaf, Any]:
        if id(value) in self._seen:
            first = self._seen[id(value)][1]
            return replace(leaf_of("reference", f"the same as {first}"), same=first), ()
        found = self._digests.array(value)
        if found is not None:
            self.found.arrays[path] = found[1]
            return found[0], ()
        leaf, parts = self._digests.take_apart(value)
        if parts and depth >= DEEP:
            return self._digests.folded(value), ()
        if parts:
            self._seen[id(value)] = (value, path)
        return leaf, parts
