import time

import chainer
import numpy as np
from mpi4py import MPI
from rank_tools import interrupt_when_waiting, need_ranks, raises

import nbmn
from nbmn.communicators import world

LATE = 0.05


def operations(comm, part):
    """Return (name, call at rank 0 where the others do not come) of all that waits."""
    one, many = np.ones(3), np.ones(100_000)
    parts = tuple(one for _ in range(comm.size))
    model = chainer.links.Linear(3, 2)
    model.cleargrads()
    return [
        ("barrier", lambda: comm.barrier()),
        ("allreduce", lambda: comm.allreduce(many)),
        ("bcast", lambda: comm.bcast(None, root=1)),
        ("gather", lambda: comm.gather(one, root=0)),
        ("allgather", lambda: comm.allgather(one)),
        ("alltoall", lambda: comm.alltoall(parts)),
        ("scatter", lambda: comm.scatter(None, root=1)),
        ("send", lambda: comm.send(many, 1)),
        ("recv", lambda: comm.recv(1)),
        ("recv", lambda: comm.recv(MPI.ANY_SOURCE, MPI.ANY_TAG)),
        ("send_obj", lambda: comm.send_obj(b"x" * 1_000_000, 1)),
        ("recv_obj", lambda: comm.recv_obj(1)),
        ("bcast_obj", lambda: comm.bcast_obj(None, root=1)),
        ("gather_obj", lambda: comm.gather_obj(1)),
        ("allgather_obj", lambda: comm.allgather_obj(1)),
        ("allreduce_obj", lambda: comm.allreduce_obj(1)),
        ("bcast_data", lambda: comm.broadcast_data(model)),
        ("multi_node_mean_grad", lambda: comm.allreduce_grad(model, zero_fill=True)),
        ("replace_data", lambda: comm.replace_data(model)),
        ("count_ranks", lambda: comm.count_ranks(True)),
        ("it", lambda: comm.agree("it")),
        ("any_rank", lambda: comm.any_rank(True)),
        ("split", lambda: comm.split(0, 0)),
        ("create_communicator", lambda: nbmn.create_communicator()),
        (
            "create_communicator",
            lambda: nbmn.create_communicator("naive", MPI.COMM_WORLD if part is None else part),
        ),
    ]


def check_every_operation_sees_an_interrupt(comm):
    need_ranks(comm, 2)
    pair = comm.split(0 if comm.rank < 2 else None, comm.rank)
    group = pair.mpi_comm if pair is not None and comm.size > 2 else None
    late = {}
    for number, (operation, call) in enumerate(operations(comm, group)):
        if comm.rank == 0:
            seen = []
            watcher = interrupt_when_waiting(operation, seen)
            with raises(KeyboardInterrupt):
                call()
            late[number, operation] = time.monotonic() - seen[0][1]
            watcher.join()
        world().renew()
        assert comm.broken is None
        assert comm.allreduce(np.array([comm.rank]))[0] == sum(range(comm.size))
        assert nbmn.create_communicator("flat").size == comm.size
    # Single ones may be held up by whatever else this machine does.
    assert np.median(list(late.values()) or [0]) < LATE / 2, late
    assert sum(seconds > LATE for seconds in late.values()) <= 2, late


def check_interrupt_in_a_creation_that_others_wait_in(comm):
    need_ranks(comm, 2)
    before = world().abandoned
    for number in range(10):
        if comm.rank == number % comm.size:
            time.sleep(0.002 * number)  # not there: the others are in the midst of it
        else:
            watcher = interrupt_when_waiting("split")
            with raises(KeyboardInterrupt):
                comm.split(comm.rank % 2, 0)
            watcher.join()
        assert world().renew() is True
        made = comm.split(comm.rank % 2, 0)
        assert made.allreduce(np.array([1]))[0] == made.size
    assert world().abandoned == before


def check_interrupt_that_is_swallowed_leaves_it_broken(comm):
    need_ranks(comm, 2)
    if comm.rank == 0:
        watcher = interrupt_when_waiting("allreduce")
        with raises(KeyboardInterrupt):
            comm.allreduce(np.ones(3))
        watcher.join()
        with raises(nbmn.communicators.BrokenCommunicatorError, "interrupted", "renew"):
            comm.allreduce(np.ones(3))
    assert world().renew() is True
    np.testing.assert_array_equal(comm.allreduce(np.ones(3)), [comm.size] * 3)
