"""What holds the memory of arrays: found from named objects, without running any code of theirs."""

from __future__ import annotations

import gc
import types
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

BUDGET = 300_000
"""Objects that are looked at; about a third of a second."""
_ATOMS = frozenset({int, float, complex, bool, str, bytes, type(None), range, slice})
_CLOSED = (type, types.ModuleType, types.FrameType, types.CodeType, types.TracebackType)
"""What leads to everything there is."""


@dataclass(frozen=True, slots=True)
class Block:
    """Memory that one or several arrays lie in."""

    key: int
    """The same for arrays that share it."""
    nbytes: int
    what: str = ""
    """The array, such as ``float32 64×3×224×224``."""


@dataclass(frozen=True, slots=True)
class Root:
    """An object with a name, from which arrays may be reached."""

    name: str
    value: Any
    function: str = ""
    """Whose variable it is; empty for the user's own."""
    needed: bool = False
    """Whether it is there to stay, as a model is."""


@dataclass(frozen=True, slots=True)
class Holder:
    """What keeps memory from being given back."""

    root: Root
    """Without its value: to be told of must not keep it."""
    part: str
    """Such as ``gradients``; empty for the thing itself."""
    nbytes: int
    what: str
    """The array, or how many they are."""


Child = tuple[str, Any]
"""The part that an object is of another, or nothing, and the object."""


@dataclass(slots=True)
class _Walk:
    block_of: Callable[[Any], Block | None]
    parts_of: Callable[[Any], Sequence[Child] | None]
    last: Sequence[str]
    budget: int
    seen: set[int]
    blocks: set[int] = field(default_factory=set)

    def below(self, pending: list[Child], later: list[Child]) -> dict[str, list[Block]]:
        """The blocks that no earlier walk has found, by part; leaves for later what can wait."""
        found: dict[str, list[Block]] = {}
        while pending and self.budget > 0:
            part, item = pending.pop()
            if type(item) in _ATOMS or id(item) in self.seen:
                continue
            self.seen.add(id(item))
            self.budget -= 1
            block = self.block_of(item)
            if block is None:
                for name, child in self.children(item):
                    wait = not part and name in self.last
                    (later if wait else pending).append((part or name, child))
            elif block.key not in self.blocks:
                self.blocks.add(block.key)
                found.setdefault(part, []).append(block)
        return found

    def children(self, item: Any) -> Sequence[Child]:
        parts = self.parts_of(item)
        if parts is not None:
            return parts
        kind = type(item)
        if issubclass(kind, _CLOSED):
            return ()
        if kind is types.FunctionType:  # not its globals
            return [("", c) for c in (item.__closure__, item.__defaults__, item.__kwdefaults__)]
        if kind in (list, tuple, dict, set) and len(item) > self.budget:
            return ()
        return [("", child) for child in gc.get_referents(item)]


def holders(
    roots: Iterable[Root],
    block_of: Callable[[Any], Block | None],
    parts_of: Callable[[Any], Sequence[Child] | None] = lambda item: None,
    *,
    last: Sequence[str] = (),
    besides: Iterable[Any] = (),
    budget: int = BUDGET,
) -> tuple[Holder, ...]:
    """Say who holds how much, the most first. Local.

    What several hold counts for the first of them.

    Parameters
    ----------
    roots
        Where to begin.
    block_of
        Returns the memory of an array that counts; None for anything else.
    parts_of
        Returns the objects that an object holds, and as what part; None where it holds what
        Python's garbage collector sees, without a part.
    last
        Parts whose turn comes when all roots have been looked into: what they hold has rather
        another name.
    besides
        Objects that are not looked into.
    budget
        Objects to look at; what is left then is not found.
    """
    walk = _Walk(block_of, parts_of, last, budget, {id(item) for item in besides})
    found: dict[tuple[Root, str], list[Block]] = {}
    begun: list[tuple[Root, list[Child]]] = [(root, [("", root.value)]) for root in roots]
    while begun:
        left = []
        for root, pending in begun:
            later: list[Child] = []
            for part, blocks in walk.below(pending, later).items():
                # Variables of a name, in a function that has called itself, count together.
                found.setdefault((replace(root, value=None), part), []).extend(blocks)
            if later:
                left.append((root, later))
        begun = left
    told = (
        Holder(root, part, sum(block.nbytes for block in blocks), _what(blocks))
        for (root, part), blocks in found.items()
    )
    return tuple(sorted(told, key=lambda holder: -holder.nbytes))


def _what(blocks: list[Block]) -> str:
    return blocks[0].what if len(blocks) == 1 else f"{len(blocks)} arrays"
