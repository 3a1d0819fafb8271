"""``%mn_diff``: the same expression on all ranks, compared."""

from __future__ import annotations

from IPython.core.error import UsageError
from IPython.core.magic import line_magic, magics_class

from nbmn.cluster.differences import diff, show_comparison
from nbmn.magics.context import ContextMagics, show


@magics_class
class DiffMagics(ContextMagics):
    """Compare ranks."""

    @line_magic
    def mn_diff(self, line: str) -> None:
        """Compare the value of an expression over ranks: ``%mn_diff EXPR [RANKS]``.

        ``%mn_diff model``, ``%mn_diff optimizer.lr``, ``%mn_diff np.random``,
        ``%mn_diff train 0,2``. What most ranks have is the reference; among as many, what the
        lowest rank has. Arrays, links, optimizers, iterators, datasets, random states,
        lists, dicts and other objects are compared part by part.
        """
        expression, words = split(line)
        session = self.context.require_session()
        ranks = self.context.choose_ranks(words)
        show(show_comparison(expression, diff(session, expression, ranks)))


def split(line: str) -> tuple[str, list[str]]:
    """Part the expression from the ranks, which come last, after a blank.

    Raises
    ------
    UsageError
        There is no expression.
    """
    text = line.strip()
    if not text:
        raise UsageError("%mn_diff needs an expression, as in %mn_diff model or %mn_diff model 0,2")
    whole = _problem(text)
    if whole is None:
        return text, []
    before, _, last = text.rpartition(" ")
    if before and _problem(before.strip()) is None:
        return before.strip(), [last]
    raise UsageError(f"{text!r} is not an expression: {whole}")


def _problem(expression: str) -> str | None:
    try:
        compile(expression, "<%mn_diff>", "eval")
    except SyntaxError as error:
        return error.msg
    return None
