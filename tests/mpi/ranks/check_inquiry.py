"""Deadlines where ranks cannot read each other's recordings, as on different hosts: they ask."""

import functools
import threading
import time
from dataclasses import replace

import numpy as np
from rank_tools import need_ranks, raises

from nbmn.communicators import CollectiveTimeoutError, world
from nbmn.communicators.communicator import compose
from nbmn.communicators.inquiry import PATIENCE, Inquiry
from nbmn.communicators.runtime import mpi

LATE = 6 * PATIENCE


def apart(comm, timeout):
    """Return a communicator of ranks that are on hosts of their own, as far as they can see."""
    peers = world()._peers
    paths = tuple(p if rank == comm.rank else None for rank, p in enumerate(peers.paths))
    made = compose(world(), *world().open_link(None, f"host {comm.rank}"), "flat")
    made.timeout = timeout
    link = made._link
    link._peers = replace(peers, paths=paths, inquiry=_inquiry())
    return made


@functools.cache
def _inquiry():
    return Inquiry(mpi().COMM_WORLD.Dup(), world().recorder.entries)


def come(comm, request):
    """Wait for something of MPI in no collective of nbmn's, as one does who computes."""
    until = time.monotonic() + LATE
    while not request.Test():
        assert time.monotonic() < until
        threading.Event().wait(0.01)


def check_who_waits_elsewhere_is_named_with_its_line(comm):
    need_ranks(comm, 2)
    here, there = apart(comm, 1.0), apart(comm, LATE)
    x = np.ones(3)
    here.allreduce(x)
    last = comm.size - 1
    if comm.rank == last:
        there.barrier()
    else:
        place = "check_inquiry.py, line"
        who = f"rank {last} has not come to allreduce #2 (rank {last} at barrier #1 ({place}"
        with raises(CollectiveTimeoutError, "waited 1 s", who):
            here.allreduce(x)
        there.barrier()
    world().renew()
    np.testing.assert_array_equal(here.allreduce(x), comm.size * x)


def check_who_computes_does_not_answer(comm):
    need_ranks(comm, 2)
    here = apart(comm, 1.0)
    all_done = mpi().COMM_WORLD.Dup()
    last = comm.size - 1
    if comm.rank != last:
        silent = f"rank {last} does not answer (it computes, or is gone)"
        with raises(CollectiveTimeoutError, "in allreduce #1", silent):
            here.allreduce(np.ones(3))
    come(comm, all_done.Ibarrier())
    all_done.Free()
    world().renew()
    assert here.allreduce_obj(1) == comm.size


def check_who_has_given_up_had_come(comm):
    """Rank 1 waits less long than rank 0; rank 2 never comes."""
    need_ranks(comm, 3)
    here = apart(comm, 3.0 + PATIENCE if comm.rank == 0 else 0.5)
    all_done = mpi().COMM_WORLD.Dup()
    if comm.rank < 2:
        silent = "rank 2 does" if comm.size == 3 else "ranks 2, 3 do"
        with raises(CollectiveTimeoutError, f" s for the other ranks: in allreduce #1; {silent}"):
            here.allreduce(np.ones(3))
    come(comm, all_done.Ibarrier())
    all_done.Free()
    world().renew()
    here.barrier()


def check_both_ends_of_a_message_are_named(comm):
    need_ranks(comm, 2)
    here, there = apart(comm, 1.0), apart(comm, LATE)
    if comm.rank == 0:
        text = "rank 0 is at recv from rank 1 (check_inquiry.py, line"
        with raises(CollectiveTimeoutError, text, "rank 1 at barrier #1 (check_inquiry.py, line"):
            here.recv(1, 0)
    there.barrier()
    world().renew()
    here.barrier()
