"""``%mn_start``, ``%mn_status``, ``%mn_restart``, ``%mn_stop``."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from IPython.core.magic import line_magic, magics_class
from IPython.core.magic_arguments import argument

from nbmn.cluster import ClusterError, Plan, Session, start
from nbmn.cluster.errors import stoppable
from nbmn.cluster.launch import check, default_ranks
from nbmn.cluster.tables import StartProgress, ranks_table, start_table, status_table
from nbmn.magics.arguments import arguments, parse, seconds, whole
from nbmn.magics.boards import load_ahead
from nbmn.magics.context import ContextMagics, Place, show
from nbmn.magics.journal import Done, describe, name
from nbmn.magics.replay import replay

NEXT = """\
%%mn              run a cell on all ranks (%%mn 0 on rank 0, %%mn 1: on the others)
%mn_push model    send a variable to the ranks
%mn_stop          end the ranks"""

HOW_MANY = "how many (default one per GPU, or one per core)"
THREADS = "threads that BLAS may use on each rank (default 1)"
TIMEOUT = "give up after so long without progress (default 120)"


@magics_class
class ClusterMagics(ContextMagics):
    """Start and stop ranks."""

    @arguments()
    @argument("ranks", metavar="RANKS", nargs="?", type=whole, help=HOW_MANY)
    @argument("--restart", action="store_true", help="stop the ranks that run, if any, first")
    @argument("--share-gpus", action="store_true", help="allow several ranks on one GPU")
    @argument("--threads", metavar="N", type=whole, default=1, help=THREADS)
    @argument("--timeout", metavar="SECONDS", type=seconds, default=120.0, help=TIMEOUT)
    @line_magic
    def mn_start(self, line: str) -> None:
        """Start MPI ranks; returns when the next cell will work on them."""
        args = parse(self.mn_start, line)
        plan = Plan(
            default_ranks() if args.ranks is None else args.ranks,
            args.threads,
            args.share_gpus,
            args.timeout,
        )
        if args.ranks is not None:
            check(plan)
        session = self.context.session
        if session is not None and session.death() is None and not args.restart:
            if args.ranks not in (None, session.size):
                raise ClusterError(
                    f"{session.size} ranks are running already; %mn_start {args.ranks} --restart "
                    "replaces them (their variables are lost)"
                )
            if "--threads" in line or "--share-gpus" in line:
                raise ClusterError(
                    f"{session.size} ranks are running already, with the options they were started "
                    "with; --restart replaces them (their variables are lost)"
                )
            self._introduce(session, "already running", Place())
            return
        self._start(plan)

    @arguments()
    @argument("ranks", metavar="RANKS", nargs="?", type=whole, help="how many (default as before)")
    @argument(
        "--replay", action="store_true", help="run again the cells and pushes that had succeeded"
    )
    @line_magic
    def mn_restart(self, line: str) -> None:
        """Stop the ranks and start new ones; variables on the ranks are lost without --replay."""
        args = parse(self.mn_restart, line)
        plan = self.context.plan or Plan(default_ranks())
        journal = self.context.journal
        ahead = journal.complete() if args.replay else []
        lost = [name(cell) for cell in journal.running()] if args.replay else []
        if lost:
            verb, them = ("is", "it") if len(lost) == 1 else ("are", "them")
            print(f"{', '.join(lost)} still ran and {verb} not replayed; run {them} again")
        self._start(plan if args.ranks is None else replace(plan, ranks=args.ranks), ahead)
        if args.replay:
            replay(self.context)
            print(f"replayed {describe(ahead)}")

    @arguments()
    @line_magic
    def mn_status(self, line: str) -> None:
        """Show every rank and what it does now."""
        parse(self.mn_status, line)
        session = self.context.require_session()
        title = f"{session.size} rank{'s' * (session.size > 1)}, {session.ranks[0].mpi}"
        runs = {rank: run.request.run for rank, run in session.running().items()}
        now = time.monotonic()
        show(status_table(title, session.ranks, session.listener.beats, runs, now))

    @arguments()
    @line_magic
    def mn_stop(self, line: str) -> None:
        """End the ranks and their processes."""
        parse(self.mn_stop, line)
        ending = self.context.change("the ranks are ending")
        with stoppable("stopped while ranks were ending; none runs"), ending:
            print("ranks stopped" if self.context.stop() else "no ranks were running")

    def _start(self, plan: Plan, ahead: Sequence[Done] = ()) -> None:
        """Start ranks instead of those that run; what is ahead is left to be done there."""
        check(plan)
        count = f"{plan.ranks} rank{' is' if plan.ranks == 1 else 's are'}"
        starting = self.context.change(f"{count} starting")
        with stoppable("stopped while ranks were starting; none runs"), starting:
            self._replace(plan, ahead)

    def _replace(self, plan: Plan, ahead: Sequence[Done]) -> None:
        self.context.stop(ahead)
        began = time.monotonic()
        place = Place()

        def progress(now: StartProgress) -> None:
            if place.redraws:
                place.show(start_table(now))

        if not place.redraws:
            print(f"starting {plan.ranks} rank{'s' * (plan.ranks > 1)} …")
        progress(StartProgress(plan.ranks, step="starting"))

        self.context.plan = plan
        session = self.context.session = start(plan, progress)
        took = time.monotonic() - began
        self._introduce(session, f"ready in {took:.1f} s", place)
        if place.redraws:
            load_ahead()

    def _introduce(self, session: Session, state: str, place: Place) -> None:
        title = f"{session.size} rank{'s' * (session.size > 1)} {state}, {session.ranks[0].mpi}"
        place.show(ranks_table(title, session.ranks, NEXT))
