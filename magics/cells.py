"""``%%mn`` and ``%mn``: run code on ranks."""

from __future__ import annotations

import argparse
import contextvars
import threading
import time
from typing import Any

from IPython.core.magic import cell_magic, line_magic, magics_class
from IPython.core.magic_arguments import argument, magic_arguments, parse_argstring
from nbmn.magics.boards import make_run_area
from nbmn.magics.context import Context, ContextMagics

from nbmn.cluster import ClusterError
from nbmn.cluster.cells import POLL, CellRun
from nbmn.cluster.ranks import name_ranks


@magics_class
class CellMagics(ContextMagics):
    """Run code on ranks."""

    @magic_arguments()
    @argument("ranks", nargs="*", help="all (default), 0, 0,2, a slice such as 1: or ::2")
    @argument("-o", "--output", metavar="NAME", help="keep the last expression's values, by rank")
    @argument("--bg", action="store_true", help="return at once; output goes on appearing")
    @argument("--local", action="store_true", help="run the cell in the notebook as well")
    @cell_magic
    def mn(self, line: str, cell: str) -> CellRun | None:
        """Run the cell on ranks; fails when it fails on one of them."""
        args = parse_argstring(self.mn, line)
        return run_on_ranks(self.context, cell, args)

    @line_magic("mn")
    def mn_line(self, line: str) -> None:
        """Evaluate one expression or statement on all ranks."""
        if not line.strip():
            raise ClusterError("%mn needs an expression, as in %mn comm.rank; a cell takes %%mn")
        args = argparse.Namespace(ranks=[], output=None, bg=False, local=False)
        run_on_ranks(self.context, line, args)


def run_on_ranks(context: Context, code: str, args: argparse.Namespace) -> CellRun | None:
    """Run code on ranks as the options say; returns the run when it is in the background."""
    session = context.require_session()
    ranks = context.choose_ranks(args.ranks)
    _announce_queue(session.active, ranks)
    area = make_run_area(context, session, ranks)
    run = session.submit(code, ranks, context.label, area, keep=args.output is not None)
    area.follow(run.request.run)
    if args.bg:
        watch_in_background(run)
        if args.output:
            context.shell.user_ns[args.output] = run
            return None
        return run
    try:
        if args.local:
            context.shell.run_cell(code).raise_error()
    finally:
        run.wait()
    if args.output:
        context.shell.user_ns[args.output] = run.results()
    return None


def _announce_queue(active: tuple[CellRun, ...], ranks: tuple[int, ...]) -> None:
    for run in active:
        shared = sorted(set(run.ranks) & set(ranks))
        if shared:
            print(
                f"{name_ranks(shared)} still run cell {run.request.label}; this one comes after it"
            )


def watch_in_background(run: CellRun) -> None:
    """Keep the output of a background cell coming."""
    # In the cell's own context, so that output appears under the cell that made it.
    cell = contextvars.copy_context()

    def watch() -> None:
        while not run.step():
            time.sleep(POLL * 5)

    thread = threading.Thread(target=lambda: cell.run(watch), name="nbmn-background", daemon=True)
    thread.start()


__all__: list[Any] = ["CellMagics", "run_on_ranks", "watch_in_background"]
