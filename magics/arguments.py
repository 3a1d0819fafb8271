"""Reads a magic's line, and tells how it is written."""

from __future__ import annotations

import argparse
import functools
import re
from collections.abc import Callable
from typing import Any, TypeVar

from IPython.core.error import UsageError
from IPython.core.magic_arguments import argument, magic_arguments, parse_argstring

_COMMENT = re.compile(r"(^|\s)#.*")
_Magic = TypeVar("_Magic", bound=Callable[..., Any])


some_ranks = functools.partial(
    argument,
    "ranks",
    metavar="RANKS",
    nargs="*",
    default=(),
    help="all (default), 0, 0,2, a slice such as 1: or ::2",
)
"""An argument that is a choice of ranks."""


class arguments:
    """Goes above a magic's ``@argument`` lines; ``--help`` then prints what ``?`` shows.

    Parameters
    ----------
    prefix
        As the magic is typed: ``%``, or ``%%`` above a cell.
    """

    def __init__(self, prefix: str = "%") -> None:
        self.prefix = prefix

    def __call__(self, magic: _Magic) -> _Magic:
        purpose = (magic.__doc__ or "").strip()
        magic = magic_arguments()(magic)
        magic.usage = self._usage(magic)  # type: ignore[attr-defined]
        magic.__doc__ = f"{_help(magic, purpose)}\n"

        @functools.wraps(magic)
        def answered(magics: Any, line: str, *cell: str) -> Any:
            if {"-h", "--help"} & set(line.split()):
                print(magic.__doc__)
                return None
            return magic(magics, line, *cell)

        return answered  # type: ignore[return-value]

    def _usage(self, magic: Any) -> str:
        """One line, in the order in which people type: argparse begins with the options."""
        words = [_word(action) for action in _actions(magic)]
        return " ".join([f"{self.prefix}{magic.parser.prog.lstrip('%')}", *words])


def parse(magic: Any, line: str) -> argparse.Namespace:
    """The arguments of a magic with :class:`arguments`.

    Raises
    ------
    UsageError
        With the magic's usage: the line does not fit.
    """
    try:
        return parse_argstring(magic, _COMMENT.sub("", line))
    except (UsageError, ValueError) as error:  # the latter of a quotation that does not end
        said = str(error).removeprefix("argument ")
        name = magic.usage.split()[0]
        raise UsageError(f"{said}\nusage: {magic.usage}\n{name} --help says more") from None


def whole(text: str) -> int:
    """Read a whole number."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from None


def seconds(text: str) -> float:
    """Read a number of seconds."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds") from None


def _actions(magic: Any) -> list[argparse.Action]:
    # No public name leads to them.
    return sorted(magic.parser._actions, key=lambda action: bool(action.option_strings))


def _word(action: argparse.Action) -> str:
    """An argument as the usage has it, such as ``[--threads N]``."""
    name = str(action.metavar or action.dest)
    if action.option_strings:
        takes = "" if action.nargs == 0 else f" {name}"
        return f"[{action.option_strings[0]}{takes}]"
    more = f"{name} …" if action.nargs in ("*", "+") else name
    return f"[{more}]" if action.nargs in ("*", "?") else more


def _help(magic: Any, purpose: str) -> str:
    rows = []
    for action in _actions(magic):
        name = "" if action.nargs == 0 else str(action.metavar or action.dest)
        rows.append((f"{', '.join(action.option_strings)} {name}".strip(), action.help or ""))
    width = max((len(what) for what, _ in rows), default=0)
    lines = "\n".join(f"  {what:{width}}  {text}" for what, text in rows)
    first, *rest = purpose.split("\n")
    text = "\n".join([first, *(line.removeprefix(" " * 8) for line in rest)])
    return "\n\n".join(part for part in (magic.usage, text, lines) if part)
