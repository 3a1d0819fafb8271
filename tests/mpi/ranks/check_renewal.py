import os
import signal
import threading
import time

import numpy as np
from rank_tools import interrupt_when_waiting, need_ranks, raises

import nbmn
from nbmn.communicators import BrokenCommunicatorError, CollectiveTimeoutError, world
from nbmn.communicators.runtime import mpi


def check_nothing_to_renew(comm):
    world().renew()
    generation = comm._link.generation
    comm.barrier()
    assert world().renew() is False
    assert comm._link.generation == generation


def check_interrupted_collective_raises_at_once_and_heals(comm):
    need_ranks(comm, 2)
    part = comm.split(0, comm.rank)
    for operation in ["allreduce", "barrier", "bcast_obj", "gather_obj"]:
        if comm.rank == 0:
            seen = []
            watcher = interrupt_when_waiting(operation, seen)
            with raises(KeyboardInterrupt):
                if operation == "allreduce":
                    comm.allreduce(np.ones(100_000))
                elif operation == "barrier":
                    comm.barrier()
                elif operation == "bcast_obj":
                    comm.bcast_obj(None, root=1)
                else:
                    comm.gather_obj(1)
            watcher.join()
            activity, when = seen[0]
            assert time.monotonic() - when < 1.0
            assert activity.operation == operation
            assert activity.file == __file__
            assert "interrupted" in comm.broken
            with raises(BrokenCommunicatorError, "rank 0", "interrupted", "renew"):
                comm.barrier()
            assert world().activity() is None
        assert world().renew() is True
        assert comm.broken is None
        np.testing.assert_array_equal(comm.allreduce(np.full(7, comm.rank)), sum(range(comm.size)))
        assert part.allgather_obj(comm.rank) == list(range(comm.size))


def check_ranks_that_went_different_ways_are_renewed(comm):
    need_ranks(comm, 2)
    # The root of a small broadcast does not wait for anyone, so nobody notices.
    if comm.rank == 0:
        comm._link.run(lambda mpi_comm: mpi_comm.Ibcast(np.array([666.0]), 0))
    assert world().renew() is True
    got = comm.bcast(np.array([1.0]) if comm.rank == 0 else None)
    assert got[0] == 1.0


def check_timeout_names_who_is_missing(comm):
    need_ranks(comm, 2)
    other = nbmn.create_communicator()
    other.set_config("timeout", 0.1)
    assert other.timeout == 0.1
    other.timeout = 0.5
    assert other.get_config("timeout") == 0.5
    other.barrier()
    comm.barrier()
    if comm.rank == 0:
        ranks = "rank 1 has" if comm.size == 2 else "ranks 1, 2 have"
        texts = ["rank 0 waited 0.5 s", f"{ranks} not come to allreduce #2"]
        if comm.size == 2:
            texts.append("rank 1 at bcast_obj #")
        texts.append("check_renewal.py, line")
        with raises(CollectiveTimeoutError, *texts):
            other.allreduce(np.ones(3))
        with raises(BrokenCommunicatorError):
            other.barrier()
    comm.bcast_obj("go on")
    assert world().renew() is True
    other.timeout = 15.0
    other.barrier()


def check_communicator_that_one_rank_dropped_is_lost(comm):
    need_ranks(comm, 2)
    other = nbmn.create_communicator()
    if comm.rank == 1:
        del other
    assert world().renew() is True
    if comm.rank != 1:
        with raises(BrokenCommunicatorError, "no longer held by rank 1", "create it again"):
            other.barrier()
    assert world().renew() is False
    comm.barrier()


def check_abandoned_message_is_not_received_later(comm):
    need_ranks(comm, 2)
    if comm.rank == 0:
        comm._link.send(lambda c: c.Isend(np.array([8], np.int64), 1, 0), 1)
    assert world().renew() is True
    if comm.rank == 0:
        comm.send_obj("right", dest=1)
    elif comm.rank == 1:
        assert comm.recv_obj(source=0) == "right"


def check_abandoned_message_is_not_received_by_later_communicators(comm):
    """MPI gives the context of a freed communicator to the next one, messages and all."""
    need_ranks(comm, 2)
    for drop in [False, True]:
        other = nbmn.create_communicator()
        if comm.rank == 0:
            other._link.send(lambda c: c.Isend(np.array([8], np.int64), 1, 0), 1)
        if drop:
            del other
        else:
            assert world().renew() is True
        later = [nbmn.create_communicator() for _ in range(10)]
        for number, each in enumerate(later):
            if comm.rank == 0:
                each.send_obj(number, dest=1)
            elif comm.rank == 1:
                assert each.recv_obj(source=0) == number


def check_interrupted_renewal_goes_on_at_the_next_call(comm):
    need_ranks(comm, 2)
    ticket = world()._ticket
    comm._link.fail(RuntimeError("broken by the test"))
    if comm.rank == 0:
        # Held back until the renewal waits, hence seen there.
        previous = signal.getsignal(signal.SIGINT)
        with raises(KeyboardInterrupt):
            signal.signal(signal.SIGINT, signal.default_int_handler)
            world().renew(_ticket_that_interrupts(ticket + 1))
        signal.signal(signal.SIGINT, previous)
    assert world().renew(ticket + 2) is True
    assert comm.allgather_obj(comm.rank) == list(range(comm.size))


def check_interrupted_renewal_without_ticket_is_repeated_by_one_rank(comm):
    need_ranks(comm, 2)
    if comm.rank == 0:
        watcher = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
        watcher.start()
        with raises(KeyboardInterrupt):
            world().renew()
        watcher.join()
        comm.send_obj("interrupted", dest=1)
    elif comm.rank == 1:
        assert comm.recv_obj(source=0) == "interrupted"
    world().renew()
    assert comm.allgather_obj(comm.rank) == list(range(comm.size))


def check_an_ignored_interrupt_stays_ignored(comm):
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        world().renew(_ticket_that_interrupts(world()._ticket + 1))
    finally:
        signal.signal(signal.SIGINT, previous)


class _ticket_that_interrupts(int):
    """Interrupts this process in the midst of the renewal's steps."""

    def __neg__(self):
        os.kill(os.getpid(), signal.SIGINT)
        return -int(self)


def check_interrupted_creation_heals(comm):
    need_ranks(comm, 2)
    if comm.rank == 0:
        watcher = interrupt_when_waiting("create_communicator")
        with raises(KeyboardInterrupt):
            nbmn.create_communicator()
        watcher.join()
    assert world().renew() is True
    assert nbmn.create_communicator().allgather_obj(1) == [1] * comm.size


def check_whoever_is_behind_joins_what_was_begun(comm):
    need_ranks(comm, 2)
    link, before, mpi_comm = comm._link, world().abandoned, comm.mpi_comm
    size, MPI = comm.size, mpi()
    counts = [r + 1 for r in range(size)]
    begin = [0, *np.cumsum(counts)[:-1].tolist()]
    many, few, own, into = np.ones(6 * size), np.ones(6), np.ones(comm.rank + 1), np.ones(6)
    all_parts = [np.ones(sum(counts)), (counts, begin), MPI.DOUBLE]
    exchange = [np.ones(2 * size), ([2] * size, [2 * r for r in range(size)]), MPI.DOUBLE]
    copies = [np.empty(2 * size), *exchange[1:]]
    everyone = range(size)
    calls = [
        lambda c: c.Ibarrier(),
        lambda c: c.Iallreduce(MPI.IN_PLACE, few),
        lambda c: c.Iallreduce(few.copy(), few, MPI.MAX),
        lambda c: c.Ialltoall(many, many.copy()),
        lambda c: c.Iallgather(few, many),
        lambda c: c.Iallgatherv(own, all_parts),
        lambda c: c.Ialltoallv(exchange, copies),
        lambda c: c.Ireduce_scatter_block(many, few, MPI.SUM),
    ]
    for root in (0, size - 1):
        here = comm.rank == root
        calls += [
            lambda c, root=root: c.Ibcast(few, root),
            lambda c, root=root, here=here: c.Ireduce(few, into if here else None, MPI.SUM, root),
            lambda c, root=root, here=here: c.Igather(few, many if here else None, root),
            lambda c, root=root, here=here: c.Iscatter(many if here else None, few, root),
            lambda c, root=root, here=here: c.Igatherv(own, all_parts if here else None, root),
            lambda c, root=root, here=here: c.Iscatterv(all_parts if here else None, own, root),
        ]
    for call in calls:
        for ahead in ([0], [size - 1], list(everyone)[1:]):
            if comm.rank in ahead:
                link.start(call)
                if comm.rank == 0:
                    link.start(calls[1])
            assert world().renew() is True
            assert comm.mpi_comm is mpi_comm
            assert comm.allreduce(np.array([comm.rank + 1]))[0] == size * (size + 1) // 2
    assert world().abandoned == before


def check_calls_that_do_not_match_are_given_up(comm):
    need_ranks(comm, 2)
    other = comm.split(0, comm.rank)
    before = world().abandoned
    for number in range(3):
        small, large = np.zeros(2), np.zeros(3000)
        call = [
            lambda c: c.Ibarrier(),
            lambda c, small=small: c.Ibcast(small, 0),
            lambda c, large=large: c.Iallreduce(mpi().IN_PLACE, large),
        ][(comm.rank + number) % 3]
        other._link.start(call)
        assert world().renew() is True
        assert other.allgather_obj(comm.rank) == list(range(comm.size))
    assert world().abandoned == before + 3


def check_messages_under_way_are_thrown_away(comm):
    need_ranks(comm, 2)
    before = world().abandoned
    large, small = np.ones(300_000), np.ones(1)
    for data in (small, large):
        # Sent and not received; asked for and not sent; of different sizes.
        for sends, receives in [(True, False), (False, True), (True, True)]:
            if comm.rank == 0 and sends:
                comm._link.ledger.exchange(comm.mpi_comm.Issend, (data, 1, 5), 1, receives=False)
                comm._link.ledger.exchange(comm.mpi_comm.Isend, (small, 1, 6), 1, receives=False)
            if comm.rank == 1 and receives:
                into = np.empty_like(data)
                comm._link.ledger.exchange(comm.mpi_comm.Irecv, (into, 0, 5), 0, receives=True)
            assert world().renew() is True
            if comm.rank == 0:
                comm.send_obj("right", 1, tag=5)
            elif comm.rank == 1:
                assert comm.recv_obj(0, tag=5) == "right"
    assert world().renew() is False
    assert world().abandoned == before


def check_many_renewals(comm):
    need_ranks(comm, 2)
    for number in range(30):
        if comm.rank == number % comm.size:
            comm.timeout = 0.001
            with raises(CollectiveTimeoutError):
                comm.allreduce(np.full(1000, 1e9))
            comm.timeout = 15.0
        world().renew()
        total = comm.allreduce(np.full(1000, comm.rank + 1.0))
        np.testing.assert_array_equal(total, comm.size * (comm.size + 1) / 2)
