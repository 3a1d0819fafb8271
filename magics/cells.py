"""``%%mn`` and ``%mn``: run code on ranks."""

from __future__ import annotations

import argparse

from IPython.core.magic import cell_magic, line_magic, magics_class
from IPython.core.magic_arguments import argument

from nbmn.cluster import ClusterError, RanksInterrupted, Session
from nbmn.cluster.cells import CellRun
from nbmn.magics.arguments import arguments, parse, some_ranks
from nbmn.magics.boards import RunArea, make_run_area
from nbmn.magics.context import Context, ContextMagics
from nbmn.magics.debug import prompt
from nbmn.magics.journal import RanCell
from nbmn.ranks import name_ranks


@magics_class
class CellMagics(ContextMagics):
    """Run code on ranks."""

    @arguments("%%")
    @some_ranks()
    @argument("-o", "--output", metavar="NAME", help="keep the last expression's values, by rank")
    @argument("--bg", action="store_true", help="return at once; output goes on appearing")
    @argument("--local", action="store_true", help="run the cell in the notebook as well")
    @argument("--debug", metavar="RANK", help="breakpoint() opens a debugger on this rank")
    @cell_magic
    def mn(self, line: str, cell: str) -> CellRun | None:
        """Run the cell on ranks; fails when it fails on one of them."""
        args = parse(self.mn, line)
        return run_on_ranks(self.context, numbered(f"%%mn {line}", cell), args)

    @line_magic("mn")
    def mn_line(self, line: str) -> None:
        """Evaluate one expression or statement on all ranks."""
        if {"-h", "--help"} & set(line.split()[:1]):
            print(self.mn.__doc__)
            return
        if line.startswith(("-o ", "--")):
            raise ClusterError(f"{line.split()[0]} goes with a cell: %%mn {line.split()[0]} …")
        if not line.strip():
            raise ClusterError("%mn needs an expression, as in %mn comm.rank; a cell takes %%mn")
        args = argparse.Namespace(ranks=[], output=None, bg=False, local=False, debug=None)
        run_on_ranks(self.context, line, args)


_PYTHON = frozenset({"%%time", "%%capture", "%%prun"})
"""Magics whose body is Python, in which comments change nothing."""


def numbered(magic: str, cell: str) -> str:
    """The cell with its magic as a comment, so that lines count as the notebook counts them.

    Another cell magic must come first, and has its body's lines counted.
    """
    if not cell.lstrip().startswith("%%"):
        return f"# {magic.rstrip()}\n{cell}"
    inner, _, body = cell.lstrip().partition("\n")
    if inner.split()[0] not in _PYTHON:
        return cell
    above = cell[: len(cell) - len(cell.lstrip())].count("\n")
    return "\n".join([inner, f"# {magic.rstrip()}", *["#"] * above, f"# {inner}", body])


def run_on_ranks(context: Context, code: str, args: argparse.Namespace) -> CellRun | None:
    """Run code on ranks as the options say; returns the run when it is in the background."""
    session = context.require_session()
    ranks = context.choose_ranks(args.ranks)
    debug = _debugged(context, ranks, args)
    _announce_queue(session.active, ranks)
    name = session.new_run(context.label)
    elsewhere = any(set(run.ranks).isdisjoint(ranks) for run in session.active)
    alone = not (args.bg or args.local or elsewhere) and debug is None
    area = make_run_area(session, name, ranks, alone)
    try:
        return _run(context, session, code, ranks, area, name, args, debug)
    except RanksInterrupted:
        raise
    except KeyboardInterrupt:
        # The stop button came before or after the wait for the ranks, which must stop all the same.
        session.stop_run(name)
        raise
    finally:
        area.release()


def _run(
    context: Context,
    session: Session,
    code: str,
    ranks: tuple[int, ...],
    area: RunArea,
    name: str,
    args: argparse.Namespace,
    debug: int | None,
) -> CellRun | None:
    keep = args.output is not None
    if debug is not None:
        with prompt(session, debug, name) as console:
            run = session.submit(code, ranks, context.label, area, keep, name, debug)
            run.wait(meanwhile=console.hold)
    else:
        run = session.submit(code, ranks, context.label, area, keep, name)
        context.journal.add(RanCell(code, tuple(args.ranks), context.label, run))
    if args.bg:
        if args.output is None:
            return run
        context.shell.user_ns[args.output] = run
        return None
    if args.local:
        _run_here(context, code, run)
    run.wait()
    if args.output:
        context.shell.user_ns[args.output] = run.results()
    return None


def _debugged(context: Context, ranks: tuple[int, ...], args: argparse.Namespace) -> int | None:
    """The rank to be debugged, if any."""
    if args.debug is None:
        return None
    if args.bg or args.local:
        raise ClusterError(
            "--debug needs the keyboard while the cell runs: leave out "
            + ("--bg" if args.bg else "--local")
        )
    rank = context.choose_rank(args.debug)
    if rank not in ranks:
        raise ClusterError(
            f"rank {rank} is to be debugged, and this cell runs on {name_ranks(ranks)}"
        )
    return rank


def _run_here(context: Context, code: str, run: CellRun) -> None:
    """Run the cell in the notebook while the ranks run it."""
    result = context.shell.run_cell(code)
    if result.success:
        return
    if isinstance(result.error_in_exec, KeyboardInterrupt):
        run.interrupt()
        run.wait()
        raise result.error_in_exec
    run.wait()
    raise ClusterError("the cell failed in the notebook; the traceback is above")


def _announce_queue(active: tuple[CellRun, ...], ranks: tuple[int, ...]) -> None:
    for run in active:
        shared = sorted(set(run.ranks) & set(ranks))
        if shared:
            print(
                f"{name_ranks(shared)} still run{'s' * (len(shared) == 1)} cell "
                f"{run.request.label}; this one comes after it"
            )
