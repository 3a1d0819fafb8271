"""``%mn_train``: run a trainer on all ranks under the live board."""

from __future__ import annotations

import argparse

from IPython.core.error import UsageError
from IPython.core.magic import line_cell_magic, magics_class
from IPython.core.magic_arguments import argument

from nbmn.cluster.cells import CellRun
from nbmn.magics.arguments import arguments, parse
from nbmn.magics.cells import numbered, run_on_ranks
from nbmn.magics.context import ContextMagics

CALL = "__import__('nbmn.engine.training').engine.training.train_named({name!r})"


@magics_class
class TrainMagics(ContextMagics):
    """Train."""

    @arguments()
    @argument("trainer", metavar="NAME", nargs="?", default="trainer", help="(default trainer)")
    @argument("--bg", action="store_true", help="return at once; the board goes on")
    @line_cell_magic
    def mn_train(self, line: str, cell: str | None = None) -> CellRun | None:
        """Run the ``chainer.training.Trainer`` of that name on all ranks.

        As a cell magic the cell runs first, on all ranks, to build the trainer.
        """
        args = parse(self.mn_train, line)
        if not args.trainer.isidentifier():
            raise UsageError(f"{args.trainer!r} is not a variable's name")
        magic = "%mn_train" if cell is None else "%%mn_train"
        code = numbered(f"{magic} {line}", cell or "").rstrip()
        code += f"\n{CALL.format(name=args.trainer)}"
        options = argparse.Namespace(ranks=[], output=None, bg=args.bg, local=False, debug=None)
        return run_on_ranks(self.context, code, options)
