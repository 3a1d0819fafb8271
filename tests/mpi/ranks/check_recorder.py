import gc
import os
import time

import chainer
import numpy as np
from rank_tools import need_ranks

import nbmn
from nbmn.communicators import world
from nbmn.communicators.recordings import read_recorder
from nbmn.engine.where import Lookout


def check_every_call_is_recorded(comm):
    x = np.ones((3, 5), np.float32)
    comm.allreduce(x)
    comm.allgather_obj("x" * 1000)
    first, second = world().recorder.entries()[-2:]
    assert (first.operation, first.nbytes, first.dtype) == ("allreduce", 60, "float32")
    assert (second.operation, second.dtype) == ("allgather_obj", "")
    assert second.nbytes >= 1000
    assert second.number == first.number + 1
    assert second.sequence == first.sequence + 1
    assert first.file == second.file == __file__
    assert second.line == first.line + 1
    assert first.begin < first.end <= second.begin < second.end <= time.monotonic()
    assert len(set(comm.allgather_obj((first.link, first.number)))) == 1


def check_an_average_is_recorded_with_its_gradients(comm):
    model = chainer.Link()
    with model.init_scope():
        model.w = chainer.Parameter(np.zeros((7, 11), np.float16))
        model.b = chainer.Parameter(np.zeros(3, np.float16))
    model.w.grad = np.ones((7, 11), np.float16)
    comm.multi_node_mean_grad(model)
    last = world().recorder.last()
    assert (last.operation, last.nbytes, last.dtype) == ("multi_node_mean_grad", 154, "float16")


def check_messages_are_recorded(comm):
    need_ranks(comm, 2)
    if comm.rank == 0:
        comm.send(np.arange(10), 1)
    elif comm.rank == 1:
        comm.recv(0)
    if comm.rank < 2:
        last = world().recorder.last()
        assert last.operation == ["send", "recv"][comm.rank]
        assert last.number == 0
        assert last.nbytes >= 80
        assert last.end is not None


def check_a_rank_that_is_stuck_can_be_read(comm):
    need_ranks(comm, 2)
    pids = comm.allgather_obj(os.getpid())
    part = comm.split(0 if comm.rank < 2 else None, 0)
    if comm.rank == 0:
        part.barrier()
    elif comm.rank == 1:
        give_up = time.monotonic() + 10
        while (entry := read_recorder(pids[0])[-1]).operation != "barrier":
            assert time.monotonic() < give_up
        assert entry.end is None
        assert (entry.file, entry.number) == (__file__, 1)
        part.barrier()
        mine = world().recorder.last()
        assert (mine.link, mine.number) == (entry.link, entry.number)


def check_calls_on_a_communicator_that_is_dropped_stay_counted(comm):
    part = comm.split(0, comm.rank)
    part.barrier()
    part.barrier()
    code = part._link.code
    del part
    gc.collect()
    assert world().begun()[code] == 2
    assert world().begun()[comm._link.code] == comm._link.calls


def check_making_a_communicator_is_counted_among_its_ranks(comm):
    need_ranks(comm, 2)
    ranks = tuple(range(comm.size))
    comm.split(0, comm.rank)
    code, number, members = world().creation()
    assert members == ranks
    assert world().begun()[code] == number
    alone = comm.split(comm.rank, 0)
    assert world().creation()[2] == (comm.rank,)
    assert alone.size == 1
    assert world().begun()[code] == number


def check_averaging_in_the_background_is_counted_when_it_begins(comm):
    model = chainer.Link()
    with model.init_scope():
        model.w = chainer.Parameter(np.zeros(5, np.float32))
    optimizer = nbmn.create_multi_node_optimizer(
        chainer.optimizers.SGD(), comm, double_buffering=True
    ).setup(model)
    for step in (1, 2):
        model.w.grad = np.ones(5, np.float32)
        optimizer.update()
        code = optimizer._background._averaging.code
        assert world().begun()[code] == step
        calls = comm._link.calls
    optimizer.flush()
    last = world().recorder.last()
    assert (last.operation, last.link, last.number) == ("finish_mean_grad", code, 2)
    # A rank is through with it though the others have not asked for the means yet.
    assert comm._link.calls == calls


class SlowToRead:
    """Says when it is being read."""

    def __reduce__(self):
        return read_slowly, ()


def read_slowly():
    entry = world().recorder.last()
    return entry.operation, entry.end is None, Lookout(world()).waits()


def check_who_reads_an_object_does_not_wait(comm):
    need_ranks(comm, 2)
    if comm.rank == 0:
        comm.send_obj(SlowToRead(), 1)
    elif comm.rank == 1:
        assert comm.recv_obj(0) == ("recv_obj", False, None)
    if comm.rank > 0:
        assert comm.bcast_obj() == ("bcast_obj", True, None)
    else:
        comm.bcast_obj(SlowToRead())
