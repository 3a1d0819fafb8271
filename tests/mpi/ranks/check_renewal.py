import contextlib
import itertools
import os
import random
import signal
import threading
import time

import numpy as np
from rank_tools import interrupt_when_waiting, need_ranks, raises

import nbmn
from nbmn.communicators import BrokenCommunicatorError, CollectiveTimeoutError, world


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


def check_timeout_names_what_it_waited_for(comm):
    need_ranks(comm, 2)
    other = nbmn.create_communicator()
    other.timeout = 0.1
    if comm.rank == 0:
        with raises(CollectiveTimeoutError, "0.1 s"):
            other.barrier()
        with raises(BrokenCommunicatorError):
            other.barrier()
    comm.barrier()
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


def check_interrupts_at_random_moments(comm):
    """Also in the renewal itself; sums stay right and nobody hangs."""
    need_ranks(comm, 2)
    part = comm.split(0, comm.rank)
    together, alone = random.Random(7), random.Random(comm.rank)
    ticket = world()._ticket
    for number in range(40):
        victim = together.randrange(comm.size) == comm.rank
        # The creation of a communicator has no deadline, so the others are interrupted
        # too, later.
        delay = together.random() * 0.005 + (0 if victim else 0.05)
        comm.timeout = part.timeout = 0.04
        timers = [
            threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT))
            for seconds in (delay, delay + alone.random() * 0.05)
        ]
        with contextlib.suppress(KeyboardInterrupt, CollectiveTimeoutError):
            timers[0].start()
            talk_for_ever(comm, part)
        begun = False
        while True:  # an interrupted renewal is repeated
            try:
                if not begun:
                    begun = True
                    timers[1].start()
                world().renew(ticket + number + 1)
                for timer in timers:
                    timer.join()
                break
            except KeyboardInterrupt:
                continue
        comm.timeout = part.timeout = 15.0
        assert part.allgather_obj(number) == [number] * comm.size
        assert comm.allreduce(np.array([number]))[0] == number * comm.size


def talk_for_ever(comm, part):
    for number in itertools.count():
        link = comm if number % 3 else part
        total = link.allreduce(np.full(1 + number * 7919 % 5000, comm.rank + 1.0))
        np.testing.assert_array_equal(total, comm.size * (comm.size + 1) / 2)
        if number % 4 == 1:
            nbmn.create_communicator().barrier()
        if number % 5 == 0:
            assert comm.bcast_obj(number if comm.rank == 0 else None) == number
        if number % 7 == 0:
            right = [number] * comm.size if comm.rank == 0 else None
            assert comm.gather_obj(number) == right
