"""What came before an exception: the error that was on its way out, or an interrupt."""

from __future__ import annotations

import ast
import linecache
import traceback
from types import FrameType

from nbmn.engine.tracebacks import defined_in


def origin(error: BaseException) -> BaseException | None:
    """The user's error that a ``finally`` was passing on when nbmn raised this one there.

    Also at the end of a ``with``. None for an error that is not nbmn's or an interrupt, and for
    one that was raised while an ``except`` dealt with another: that was no failure.
    """
    if not _is_ours(error):
        return None
    before = error.__context__
    while before is not None and _passed_on(before, error):
        if not _is_ours(before):
            return before
        error, before = before, before.__context__
    return None


def follows_interrupt(error: BaseException) -> bool:
    """Whether it was raised while a KeyboardInterrupt was dealt with."""
    before = error.__context__
    while before is not None and not isinstance(before, KeyboardInterrupt):
        before = before.__context__
    return before is not None


def _is_ours(error: BaseException) -> bool:
    return defined_in(error) == "nbmn" or isinstance(error, KeyboardInterrupt)


def _passed_on(before: BaseException, error: BaseException) -> bool:
    """Whether some frame that both went through was passing the first on at the second."""
    firsts = _lines(before)
    return any(
        frame in firsts and in_finally(_source(frame), firsts[frame], line)
        for frame, line in _lines(error).items()
    )


def _lines(error: BaseException) -> dict[FrameType, int]:
    return dict(traceback.walk_tb(error.__traceback__))


def _source(frame: FrameType) -> str:
    return "".join(linecache.getlines(frame.f_code.co_filename, frame.f_globals))


def in_finally(source: str, first: int, second: int) -> bool:
    """Whether what is raised at the first line is on its way through a ``finally``, or the end of
    a ``with``, at the second."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return False  # magics, or no source at all
    for node in ast.walk(tree):
        if isinstance(node, (ast.Try, getattr(ast, "TryStar", ast.Try))):
            left = [*node.body, *node.handlers, *node.orelse]
            if _has(left, first) and _has(node.finalbody, second):
                return True
        if isinstance(node, (ast.With, ast.AsyncWith)):
            end = node.lineno <= second < node.body[0].lineno
            if end and _has(node.body, first):
                return True
    return False


def _has(nodes: list[ast.stmt] | list[ast.AST], line: int) -> bool:
    return any(node.lineno <= line <= (node.end_lineno or node.lineno) for node in nodes)
