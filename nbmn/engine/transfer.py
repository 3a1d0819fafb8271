"""Variables in and out of a rank's namespace.

The notebook sends a value once, to one rank; the ranks pass it on among
themselves over MPI, which is faster than the notebook's socket and does not
grow with the number of ranks there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from IPython import get_ipython

import nbmn
from nbmn import frames
from nbmn.communicators import Communicator
from nbmn.engine.cells import message_of
from nbmn.engine.guard import guarded
from nbmn.engine.reporter import reporter
from nbmn.frames import Parts
from nbmn.messages import CellError

Reply = tuple[CellError | None, Parts | None]
"""What a rank answers. A plain tuple, so that ipyparallel sends the parts uncopied."""


@functools.cache
def channel() -> Communicator:
    """The communicator of transfers, apart from the user's. Collective the first time."""
    return nbmn.create_communicator()


def receive(run: str, members: Sequence[int], sent: Parts | None) -> Reply:
    """Take variables into the namespace. Collective over ``members``.

    The first member got ``sent`` from the notebook and passes it to the others.
    ``run`` is what the notebook would interrupt it by.
    """

    def take() -> None:
        get_ipython().user_ns.update(frames.load(_pass_on(channel(), members, sent)))

    return answer(run, take)


def send_back(run: str, name: str) -> Reply:
    """Give the value of a variable to the notebook. Local."""

    def value() -> Parts:
        namespace = get_ipython().user_ns
        if name not in namespace:
            raise NameError(f"no variable {name!r} on this rank")
        return frames.dump(namespace[name])

    return answer(run, value)


def answer(run: str, work: Callable[[], Parts | None]) -> Reply:
    """Do the work of a run, and tell how it went. Local; never raises."""
    # Where it waits for others, its place is the magic, not a line of the engine's.
    code = compile("work()", run.partition(" ")[0], "eval")
    parts, error = guarded(run, lambda: eval(code, {"work": work}), traced=False)
    reporter().end("done" if error is None else "failed")
    if error is None:
        return None, parts
    return CellError(type(error).__name__, message_of(error)), None


def _pass_on(comm: Communicator, members: Sequence[int], sent: Parts | None) -> Parts:
    root = members[0]
    parts = frames.writable(sent) if sent is not None else []
    if len(members) == comm.size:
        count = comm.bcast_obj(len(parts), root=root)
        return [comm.bcast(part, root) for part in parts or [None] * count]
    if comm.rank != root:
        return comm.recv_obj(root)
    for other in members[1:]:
        comm.send_obj(parts, other)
    return parts
