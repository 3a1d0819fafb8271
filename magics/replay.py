"""Does on new ranks what was done on those before: ``%mn_restart --replay``."""

from __future__ import annotations

from nbmn.cluster import ClusterError
from nbmn.cluster.transfer import push
from nbmn.magics.boards import make_run_area
from nbmn.magics.context import Context
from nbmn.magics.journal import Pushed, RanCell, name


def replay(context: Context) -> None:
    """Do again what is ahead in the journal, in order; ends at the first error.

    What was not done by then stays ahead, for the next replay.

    Raises
    ------
    RanksFailed, ClusterError
        As the cell or push does.
    """
    journal = context.journal
    begun = len(journal.ahead)
    try:
        while journal.ahead:
            done = journal.ahead[0]
            if isinstance(done, RanCell):
                _run(context, done)
            else:
                _push(context, done)
            journal.advance()
    finally:
        if journal.ahead:
            through = begun - len(journal.ahead)
            print(
                f"replayed {through} of {begun}, and {name(journal.ahead[0])} did not succeed; "
                "%mn_restart --replay does all of them again, a plain %mn_restart forgets them"
            )


def _run(context: Context, cell: RanCell) -> None:
    session = context.require_session()
    ranks = context.choose_ranks(cell.ranks)
    run = session.new_run(cell.label)
    area = make_run_area(session, run, ranks)
    try:
        session.submit(cell.code, ranks, cell.label, area, run=run).wait()
    finally:
        area.release()


def _push(context: Context, pushed: Pushed) -> None:
    namespace = context.shell.user_ns
    missing = [name for name in pushed.names if name not in namespace]
    if missing:
        raise ClusterError(f"the notebook has no {', '.join(missing)} any more to push again")
    values = {name: namespace[name] for name in pushed.names}
    push(context.require_session(), values, context.choose_ranks(pushed.ranks))
