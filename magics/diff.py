"""``%mn_diff``: the same expression on all ranks, compared."""

from __future__ import annotations

import inspect
import math
import re
from dataclasses import dataclass, replace

from IPython.core.error import UsageError
from IPython.core.magic import line_magic, magics_class

from nbmn.cluster.differences import diff, show_comparison
from nbmn.magics.context import ContextMagics, show


@magics_class
class DiffMagics(ContextMagics):
    """Compare ranks."""

    @line_magic
    def mn_diff(self, line: str) -> None:
        """Compare the value of an expression over ranks: ``%mn_diff EXPR [RANKS] [--tol 1e-3]``.

        ``%mn_diff model``, ``%mn_diff optimizer.lr``, ``%mn_diff np.random``,
        ``%mn_diff train 0,2``. What most ranks have is the reference; among as many, what the
        lowest rank has. Arrays, links, optimizers, iterators, datasets, random states,
        lists, dicts and other objects are compared part by part. With ``--tol`` numbers, also
        those in arrays, that are at most so far apart count as alike.
        """
        if line.strip() in ("-h", "--help"):
            print(f"{USAGE}\n\n{inspect.cleandoc(self.mn_diff.__doc__ or '')}")
            return
        asked = parse(line)
        session = self.context.require_session()
        ranks = self.context.choose_ranks(asked.ranks)
        comparison = diff(session, asked.expression, ranks, asked.tolerance)
        show(show_comparison(asked.expression, comparison))


@dataclass(frozen=True, slots=True)
class Asked:
    """What a person typed after ``%mn_diff``."""

    expression: str
    ranks: tuple[str, ...] = ()
    """In the person's words."""
    tolerance: float = 0.0


USAGE = "%mn_diff EXPR [RANKS] [--tol 1e-3]"


def parse(line: str) -> Asked:
    """Part the expression from the ranks and options, which come last, after a blank.

    Raises
    ------
    UsageError
        There is no expression, or an option is unknown or wrong.
    """
    text = line.strip()
    if not text:
        raise UsageError("%mn_diff needs an expression, as in %mn_diff model or %mn_diff model 0,2")
    begin = _OPTION.search(text)
    if begin is not None:
        found = _split(text[: begin.start()])
        if found is not None:
            ranks, tolerance = _options(text[begin.start() :].replace("=", " ").split())
            return replace(found, ranks=found.ranks + ranks, tolerance=tolerance)
    found = _split(text)
    if found is None:
        raise UsageError(f"{text!r} is not an expression: {_problem(text)}")
    return found


_OPTION = re.compile(r"\s--(?=[A-Za-z])")


def _options(words: list[str]) -> tuple[tuple[str, ...], float]:
    """Ranks and tolerance."""
    ranks, tolerance = [], 0.0
    left = iter(words)
    for word in left:
        if not word.startswith("--"):
            ranks.append(word)
        elif word != "--tol":
            raise UsageError(f"%mn_diff has no option {word}; write {USAGE}")
        else:
            tolerance = _tolerance(next(left, ""))
    return tuple(ranks), tolerance


def _tolerance(word: str) -> float:
    try:
        tolerance = float(word)
    except ValueError:
        tolerance = -1.0
    if not 0 <= tolerance < math.inf:
        raise UsageError(f"--tol takes a number such as 1e-3, not {word!r}; write {USAGE}")
    return tolerance


def _split(text: str) -> Asked | None:
    """An expression, or one and ranks; None if it is neither."""
    if _problem(text) is None:
        return Asked(text)
    before, ranks = text, ()
    while _problem(before) is not None:
        before, _, last = before.rpartition(" ")
        before, ranks = before.rstrip(), (last, *ranks)
        if not before or (len(ranks) > 1 and not all(map(_RANKS.fullmatch, ranks))):
            return None
    if _RANKS.fullmatch(ranks[0]) is None:
        raise UsageError(f"{ranks[0]!r} is no choice of ranks, such as 0,2; write {USAGE}")
    return Asked(before, ranks)


_RANKS = re.compile(r"all|[-\d,:]+")


def _problem(expression: str) -> str | None:
    try:
        compile(expression, "<%mn_diff>", "eval")
    except SyntaxError as error:
        return error.msg
    return None
