"""``%mn_debug``: a debugger's prompt at a rank's last exception; and ``--debug``, in a cell."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from IPython.core.error import StdinNotImplementedError
from IPython.core.magic import line_magic, magics_class
from IPython.core.magic_arguments import argument

from nbmn.cluster import ClusterError, Session
from nbmn.cluster.area import make_area
from nbmn.cluster.cells import CellRun
from nbmn.debug import input_box
from nbmn.debug.prompt import Prompt
from nbmn.front_end import front_end
from nbmn.magics.arguments import arguments, parse
from nbmn.magics.context import ContextMagics


@magics_class
class DebugMagics(ContextMagics):
    """Debug one rank, while the others keep their state."""

    @arguments()
    @argument("rank", metavar="RANK", help="the rank whose last exception to look at")
    @line_magic
    def mn_debug(self, line: str) -> None:
        """Open a debugger (ipdb) where a rank's last exception was raised."""
        args = parse(self.mn_debug, line)
        session = self.context.require_session()
        rank = self.context.choose_rank(args.rank)
        with session.idle([rank]):
            name = session.new_run(self.context.label)
        area = make_area()
        with prompt(session, rank, name) as console:
            run = session.submit("", [rank], self.context.label, area, run=name, post_mortem=True)
            run.wait(meanwhile=console.hold)


class _Console(Prompt):
    def hold(self, run: CellRun) -> None:
        try:
            super().hold(run)
        except StdinNotImplementedError:
            run.interrupt()
            with contextlib.suppress(ClusterError):
                run.wait()
            raise ClusterError(
                "this front end cannot ask for input; debug in JupyterLab, Notebook, VS Code, "
                "jupyter console or IPython"
            ) from None


@contextlib.contextmanager
def prompt(session: Session, rank: int, run: str) -> Iterator[Prompt]:
    """The notebook as the console of a rank in a run that has not begun."""
    ask = input if front_end().keeps_answers else input_box.ask
    console = _Console(session.listener, rank, run, ask)
    try:
        yield console
    finally:
        console.close()
