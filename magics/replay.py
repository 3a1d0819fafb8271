"""Does on new ranks what was done on those before: ``%mn_restart --replay``."""

from __future__ import annotations

from collections.abc import Sequence

from nbmn.cluster import ClusterError
from nbmn.cluster.transfer import push
from nbmn.magics.boards import make_run_area
from nbmn.magics.context import Context
from nbmn.magics.journal import Done, Pushed, RanCell


def replay(context: Context, journal: Sequence[Done]) -> None:
    """Run cells and push variables again, in the same order; ends at the first error.

    Raises
    ------
    RanksFailed, ClusterError
        As the cell or push does.
    """
    for done in journal:
        if isinstance(done, RanCell):
            _run(context, done)
        else:
            _push(context, done)
        context.journal.add(done)


def _run(context: Context, cell: RanCell) -> None:
    session = context.require_session()
    ranks = context.choose_ranks(cell.ranks)
    name = session.new_run(cell.label)
    area = make_run_area(context, session, name, ranks)
    session.submit(cell.code, ranks, cell.label, area, run=name).wait()


def _push(context: Context, pushed: Pushed) -> None:
    namespace = context.shell.user_ns
    missing = [name for name in pushed.names if name not in namespace]
    if missing:
        raise ClusterError(f"the notebook has no {', '.join(missing)} any more to push again")
    values = {name: namespace[name] for name in pushed.names}
    push(context.require_session(), values, context.choose_ranks(pushed.ranks))
