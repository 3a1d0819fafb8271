"""Reads a magic's line, and says of which magic it could not."""

from __future__ import annotations

import argparse
from typing import Any

from IPython.core.error import UsageError
from IPython.core.magic_arguments import parse_argstring


def parse(magic: Any, line: str, prefix: str = "%") -> argparse.Namespace:
    """The arguments of a magic made by ``magic_arguments``, and typed after that prefix.

    Raises
    ------
    UsageError
        With the magic's usage: the line does not fit, or asks for help.
    """
    parser = magic.parser
    if {"-h", "--help"} & set(line.split()):
        raise UsageError("\n" + _plain(parser.format_help(), prefix))
    try:
        return parse_argstring(magic, line)
    except UsageError as error:
        raise UsageError(f"{error}; usage: {_plain(parser.format_usage(), prefix)}") from None


def _plain(text: str, prefix: str) -> str:
    # IPython writes it as a literal block of reStructuredText.
    return prefix + text.replace("::", "", 1).strip().lstrip("%")
