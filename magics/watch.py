"""``%mn_where`` and ``%mn_interrupt``: look at ranks that run, and stop them."""

from __future__ import annotations

from IPython.core.magic import line_magic, magics_class

from nbmn.cluster.errors import stoppable
from nbmn.cluster.interrupting import interrupt
from nbmn.cluster.tables import Bundle
from nbmn.cluster.whereabouts import where
from nbmn.debug.stacks import fold, render_html, render_text
from nbmn.magics.arguments import arguments, parse, some_ranks
from nbmn.magics.context import ContextMagics, Place, show


@magics_class
class WatchMagics(ContextMagics):
    """Look at ranks that run, and stop them."""

    @arguments()
    @some_ranks()
    @line_magic
    def mn_where(self, line: str) -> None:
        """Show where ranks are: their stacks, equal ones once, and what they wait in."""
        args = parse(self.mn_where, line)
        session = self.context.require_session()
        with stoppable("%mn_where was stopped; the ranks were not"):
            groups = fold(where(session, self.context.choose_ranks(args.ranks)))
        show(Bundle(render_text(groups), render_html(groups)))

    @arguments()
    @some_ranks()
    @line_magic
    def mn_interrupt(self, line: str) -> None:
        """Interrupt cells in the background; once more kills ranks that do not answer."""
        args = parse(self.mn_interrupt, line)
        session = self.context.require_session()
        ranks = self.context.choose_ranks(args.ranks)
        place = Place()

        def countdown(text: str) -> None:
            place.show(Bundle(text, f"<div>{text}</div>"))

        with stoppable("the ranks were interrupted; nobody waits for their answer any more"):
            told = interrupt(session, ranks, countdown)
        print(told)
