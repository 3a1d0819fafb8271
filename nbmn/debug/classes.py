"""What a class of the user's is: its name alone does not tell it from an older definition."""

from __future__ import annotations

import functools
import sys
import types
from typing import Any

from nbmn.communicators.callers import Origin, origin_of
from nbmn.debug.parts import Children, Parts, is_plain

_NOT_DEFINED = frozenset(
    {
        *("__module__", "__qualname__", "__doc__", "__dict__", "__weakref__", "__annotations__"),
        *("__firstlineno__", "__static_attributes__", "__abstractmethods__", "__parameters__"),
    }
)
"""What Python notes in a class, whatever it does."""


def is_users(kind: type) -> bool:
    """Whether a class is defined in a cell, or in a file of the user's."""
    module = str(kind.__module__)
    file = getattr(sys.modules.get(module), "__file__", None) or "<no file>"
    return module == "__main__" or origin_of(module, file) is Origin.OWN


def class_parts(kind: type) -> Parts:
    """A class: its name, and of one of the user's what it defines. Local.

    Not what its objects, or libraries, may have kept in it.
    """
    text = f"{kind.__module__}.{kind.__qualname__}"
    return Parts("class", text, list(_defined(kind)) if is_users(kind) else ())


def _defined(kind: type) -> Children:
    if kind.__bases__ != (object,):
        yield ".__bases__", kind.__bases__
    for name, member in sorted(vars(kind).items()):
        if name not in _NOT_DEFINED:
            yield from _member(f".{name}", member)


def _member(path: str, member: Any) -> Children:
    if isinstance(member, property):
        accesses = {"": member.fget, ".setter": member.fset, ".deleter": member.fdel}
        yield from ((path + name, each) for name, each in accesses.items() if each is not None)
    elif isinstance(member, (staticmethod, classmethod)):
        yield path, member.__func__
    elif isinstance(member, functools.cached_property):
        yield path, member.func
    elif isinstance(member, types.FunctionType) or is_plain(member):
        yield path, member
