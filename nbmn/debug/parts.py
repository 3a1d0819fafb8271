"""What a value is made of: its kind, and its parts by path."""

from __future__ import annotations

import enum
import functools
import hashlib
import random
import re
import sys
import types
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Children = Iterable[tuple[str, Any]]
"""Path within the whole, such as ``.lr``, and value."""


@dataclass(frozen=True, slots=True)
class Parts:
    """A value, taken apart once."""

    kind: str
    """Its type."""
    text: str
    """What it is, apart from its parts."""
    children: Children = ()
    identity: bytes = b""
    """Equal where values are equal apart from their parts; where empty, the text is."""
    nameless: Sequence[tuple[Any, ...]] = ()
    """Items of a set, and keys of a dict with their values, that only what they consist of
    tells apart: a short text, the item, and the value if it is a key."""


@dataclass(frozen=True, slots=True)
class Opaque:
    """A value that cannot be looked into."""

    kind: str


_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(...), range, slice, enum.Enum)
_DIGITS = 10_000
"""Bits of an integer beyond which it is written in hexadecimal digits."""
_SHORT = 40
"""Characters of a key that is not plain."""
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_MPI = ("mpi4py", "nbmn.communicators", "chainermn.communicators", "cupy_backends")


def parts(value: Any) -> Parts | Opaque:
    """Take a value apart; local.

    Raises
    ------
    Exception
        Whatever the value's own methods raise.
    """
    if isinstance(value, (*_PLAIN, np.generic, np.dtype)):
        return plain(value)
    if isinstance(value, type):
        from nbmn.debug.classes import class_parts

        return class_parts(value)
    if is_of_mpi(value):
        return Opaque(type(value).__name__)
    if isinstance(value, types.ModuleType):
        return module(value)
    if isinstance(value, (types.FunctionType, types.MethodType, functools.partial)):
        return function(value)
    if isinstance(value, (np.random.RandomState, np.random.Generator, random.Random)):
        return random_numbers(value)
    if "chainer" in sys.modules:
        from nbmn.debug.chainer_parts import chainer_parts

        found = chainer_parts(value)
        if found is not None:
            return found
    if isinstance(value, np.ma.MaskedArray):
        return masked(value)
    if isinstance(value, np.ndarray):
        return objects(value)
    if isinstance(value, (dict, types.MappingProxyType)):
        return keyed(value)
    if isinstance(value, (list, tuple, deque)):
        items = [(f"[{i}]", item) for i, item in enumerate(value)]
        return Parts(name(value), f"{name(value)} of {len(value)}", [*items, *attributes(value)])
    if isinstance(value, (set, frozenset)):
        plain_items = [(f"{{{item!r}}}", None) for item in value if is_plain(item)]
        others = [(shortly(item), item) for item in value if not is_plain(item)]
        children = [*sorted(plain_items), *attributes(value)]
        return Parts(name(value), f"{name(value)} of {len(value)}", children, nameless=others)
    return instance(value)


def is_of_mpi(value: Any) -> bool:
    """Whether a value is a rank's own way to reach others: a communicator, a request."""
    return str(type(value).__module__).startswith(_MPI)


def name(value: Any) -> str:
    """The type of a value."""
    return type(value).__name__


def plain(value: Any) -> Parts:
    """A value without parts."""
    return Parts(name(value), plain_text(value))


def plain_text(value: Any) -> str:
    """What a value without parts is, in full."""
    if isinstance(value, (np.generic, np.dtype)):
        return str(value)
    if isinstance(value, int) and value.bit_length() > _DIGITS:
        return hex(value)  # Python refuses to write so many decimal digits
    return repr(value)


def is_plain(value: Any) -> bool:
    """Whether a key says by its ``repr`` all that it is."""
    if isinstance(value, tuple):
        return all(map(is_plain, value))
    return isinstance(value, (*_PLAIN, np.generic, np.dtype, type))


def without_address(text: str) -> str:
    """What an object says of itself, without where it lies in this process's memory."""
    return _ADDRESS.sub("", text)


def shortly(value: Any) -> str:
    """A few words that are the same on all ranks, for a key that is not plain."""
    if isinstance(value, (tuple, set, frozenset)):
        return name(value)  # of a set they would come in any order
    return without_address(repr(value))[:_SHORT]


def keyed(value: Mapping) -> Parts:
    """A dict."""
    children = [(f"[{key!r}]", item) for key, item in value.items() if is_plain(key)]
    others = [(shortly(key), key, item) for key, item in value.items() if not is_plain(key)]
    children += attributes(value)
    return Parts(name(value), f"{name(value)} of {len(value)}", children, nameless=others)


def attributes(value: Any) -> Children:
    """What an object of a class of the user's has besides its items."""
    return [(f".{key}", item) for key, item in getattr(value, "__dict__", {}).items()]


def masked(value: np.ma.MaskedArray) -> Parts:
    """An array with a mask; what is under the mask does not count."""
    text = f"{name(value)} {value.dtype} {value.shape}"
    seen = np.asarray(value.filled(np.zeros((), value.dtype)))
    return Parts(name(value), text, [(".data", seen), (".mask", np.ma.getmaskarray(value))])


def objects(value: np.ndarray) -> Parts:
    """An array that holds objects, or has attributes of its own."""
    text = f"{name(value)} {value.dtype} {value.shape}"
    if not value.dtype.hasobject:
        children: list[tuple[str, Any]] = [(".view(np.ndarray)", np.asarray(value))]
        return Parts(text, text, [*children, *attributes(value)])
    if value.ndim == 0:
        return Parts(text, text, [("[()]", value.item())])
    return Parts(text, text, [(f"[{i}]", item) for i, item in enumerate(value)])


def module(value: types.ModuleType) -> Parts | Opaque:
    """A module; those that hold a random state stand for it."""
    if value is np.random:
        return random_numbers(np.random.mtrand._rand)
    if value is random:
        return random_numbers(random._inst)  # type: ignore[attr-defined]
    return Parts("module", f"module {value.__name__}")


def random_numbers(generator: Any) -> Parts:
    """A source of random numbers: alike if the next ones are."""
    if isinstance(generator, np.random.RandomState):
        algorithm, key, position, *gauss = generator.get_state(legacy=True)
        state: Any = (algorithm, key.tobytes(), position, gauss)
        text = f"{algorithm} at {position} of state {short(key.tobytes())}"
    elif isinstance(generator, np.random.Generator):
        state = generator.bit_generator.state
        text = f"{state['bit_generator']} of state {short(repr(state).encode())}"
    else:
        state = generator.getstate()
        text = f"MT19937 of state {short(repr(state).encode())}"
    return Parts(name(generator), text, (), repr(state).encode())


def short(data: bytes) -> str:
    """Few characters that tell states apart."""
    return hashlib.blake2b(data, digest_size=4).hexdigest()


def function(value: Any) -> Parts:
    """A function: its code, defaults and closure."""
    if isinstance(value, functools.partial):
        children = [(".func", value.func), (".args", value.args), (".keywords", value.keywords)]
        return Parts("partial", "partial", children)
    if isinstance(value, types.MethodType):
        children = [(".__func__", value.__func__), (".__self__", value.__self__)]
        return Parts("method", value.__qualname__, children)
    cells = value.__closure__ or ()
    names = value.__code__.co_freevars
    inner = [(f".{n}", c.cell_contents) for n, c in zip(names, cells, strict=True) if filled(c)]
    defaults = [(".__defaults__", value.__defaults__), (".__kwdefaults__", value.__kwdefaults__)]
    children = [*defaults, *inner, *attributes(value)]
    return Parts("function", value.__qualname__, children, code_bytes(value.__code__))


def filled(cell: types.CellType) -> bool:
    """Whether a closure's variable has a value."""
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False


def code_bytes(code: types.CodeType) -> bytes:
    """What a function does, wherever it is written."""
    constants = map(constant_bytes, code.co_consts)
    return b"\0".join([code.co_code, repr(code.co_names).encode(), *constants])


def constant_bytes(constant: Any) -> bytes:
    """A constant of a function's code."""
    if isinstance(constant, types.CodeType):
        return code_bytes(constant)
    if isinstance(constant, tuple):
        return b"(%b)" % b",".join(map(constant_bytes, constant))
    if isinstance(constant, frozenset):  # its order is another in each process
        return b"{%b}" % b",".join(sorted(map(constant_bytes, constant)))
    return repr(constant).encode()


def instance(value: Any) -> Parts | Opaque:
    """An object of any class: its attributes, or what it would be copied by."""
    text = name(value)
    if hasattr(type(value), "__len__") and hasattr(type(value), "__getitem__"):
        text = f"{text} of {len(value)}"
    kind = type(value)
    ordinary = kind.__reduce_ex__ is object.__reduce_ex__ and kind.__reduce__ is object.__reduce__
    if ordinary and hasattr(value, "__dict__") and not has_slots(kind):
        return Parts(name(value), text, [(f".{key}", item) for key, item in vars(value).items()])
    try:
        reduced = value.__reduce_ex__(4)
    except TypeError:  # a lock, a generator, an open file
        return Opaque(name(value))
    if isinstance(reduced, str):
        return Parts(name(value), reduced)
    make, arguments, *more = reduced
    state, items, pairs = [*more, None, None, None][:3]
    return Parts(name(value), text, list(recipe(value, make, arguments, state, items, pairs)))


def has_slots(kind: type) -> bool:
    """Whether objects of this class keep attributes outside their ``__dict__``."""
    return any(base.__dict__.get("__slots__") for base in kind.__mro__)


def recipe(
    value: Any, make: Callable, arguments: tuple, state: Any, items: Any, pairs: Any
) -> Children:
    """The parts of what pickle would make an object of."""
    if make.__name__ not in ("__newobj__", "__newobj_ex__"):
        yield ".__reduce__", make
    for i, argument in enumerate(arguments):
        if argument is not type(value):
            yield f".__reduce__[{i}]", argument
    if isinstance(state, tuple) and len(state) == 2 and isinstance(state[1], dict):
        state = {**(state[0] or {}), **state[1]}  # attributes in a __dict__ and in slots
    if isinstance(state, dict):
        yield from ((f".{key}", item) for key, item in state.items())
    elif state is not None:
        yield ".__getstate__()", state
    for i, item in enumerate(items or ()):
        yield f"[{i}]", item
    for key, item in pairs or ():
        yield f"[{key!r}]", item
