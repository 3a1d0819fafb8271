"""``%mn_trace``: what each rank did in its last steps."""

from __future__ import annotations

from IPython.core.error import UsageError
from IPython.core.magic import line_magic, magics_class
from IPython.core.magic_arguments import argument

from nbmn.cluster.errors import stoppable
from nbmn.cluster.timelines import one_host, trace
from nbmn.dashboard.lanes import lanes
from nbmn.dashboard.timeline_page import show_timeline
from nbmn.front_end import front_end
from nbmn.magics.arguments import arguments, parse, whole
from nbmn.magics.context import ContextMagics
from nbmn.ranks import name_ranks


@magics_class
class TraceMagics(ContextMagics):
    """Look at time."""

    @arguments()
    @argument(
        "steps",
        metavar="STEPS",
        nargs="?",
        type=whole,
        default=10,
        help="how many steps (default 10)",
    )
    @argument("--ranks", metavar="RANKS", default="all", help="of which ranks (default all)")
    @line_magic
    def mn_trace(self, line: str) -> None:
        """Show what each rank did in its last steps, as a timeline; also while they train.

        Data, forward, backward, communication, waiting for others, update. A loop of your own
        marks what it does by ``with nbmn.phase("data"):``. An optimizer's update ends a step, and
        so does a phase named ``update``; where there is none, each ``nbmn.report(...)`` does.
        Without any of these the last cell is shown as a whole. Earlier cells never are.
        """
        args = parse(self.mn_trace, line)
        if args.steps < 1:
            raise UsageError("%mn_trace shows at least one step")
        session = self.context.require_session()
        ranks = self.context.choose_ranks([args.ranks])
        with stoppable("%mn_trace was stopped; the ranks were not"):
            told = trace(session, args.steps, ranks)
        silent = sorted(set(ranks) - {timeline.rank for timeline in told})
        if silent:
            print(f"{name_ranks(silent)} did not answer; %mn_where tells what they are in")
        show_timeline(lanes(told, one_host(session, ranks)), live=front_end().redraws)
