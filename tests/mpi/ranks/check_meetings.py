"""Ranks of one host agree in shared memory: who can, what the others see, and after faults."""

import gc
import random

import chainer
import numpy as np
from rank_tools import interrupt_when_waiting, need_ranks, raises

import nbmn
from nbmn.communicators import CollectiveTimeoutError, MismatchError, lines, transport, world
from nbmn.communicators.agreement import Vote
from nbmn.communicators.window import SharedMemoryBackend


def works(comm):
    total = comm.allreduce(np.array([comm.rank]))
    assert total[0] == sum(range(comm.size))
    assert comm.allgather_obj(comm.rank) == list(range(comm.size))


def check_ranks_of_one_host_meet(comm):
    part = comm.split(comm.rank % 2, -comm.rank)
    for link in (comm._link, part._link):
        assert link.ledger.meets == lines.ORDERED
    works(part)


def check_votes_with_and_without_messages(comm):
    plain = nbmn.create_communicator("flat")
    plain._link.ledger.meets = False  # as between hosts
    chance = random.Random(3)  # the same on all ranks
    for number in range(200):
        for link in (comm._link, plain._link):
            odd, fails, flags = (chance.choice([None, *range(comm.size)]) for _ in range(3))
            said = (number, link.rank == odd)
            vote = Vote(link, said, failed=link.rank == fails, flag=link.rank == flags)
            outcome = vote.outcome()
            assert outcome.unanimous == (odd is None or comm.size == 1)
            assert outcome.failed == (fails is not None)
            assert outcome.flagged == (flags is not None)


def check_lines_are_given_back(comm):
    def free():
        gc.collect()
        nbmn.create_communicator("flat")  # frees what nobody holds
        return len(world()._lines._free)

    made = [nbmn.create_communicator("flat") for _ in range(20)]
    before = free()
    del made
    # None is lost; the last ones made are freed at the next creation.
    assert free() >= before + 18 or not lines.ORDERED
    level = free()
    for _ in range(30):
        comm.split(0, comm.rank).barrier()
    assert free() >= level - 2


def check_a_rank_without_a_line(comm):
    mine = world()._lines
    if comm.rank == comm.size - 1:
        kept, mine._free = mine._free, []
    made = nbmn.create_communicator("auto")
    if comm.rank == comm.size - 1:
        mine._free = kept
    assert not made._link.ledger.meets
    works(made)
    made.barrier()
    again = nbmn.create_communicator("auto")
    assert again._link.ledger.meets == lines.ORDERED
    works(again)


def check_different_calls_are_an_error_on_all(comm):
    need_ranks(comm, 2)
    model = chainer.links.Linear(3, 2)
    model.cleargrads()
    calls = [
        ("multi_node_mean_grad", lambda: comm.multi_node_mean_grad(model)),
        ("bcast", lambda: comm.bcast(np.ones(3))),
        ("barrier", comm.barrier),
        ("allgather_obj", lambda: comm.allgather_obj(1)),
        ("allreduce", lambda: comm.allreduce(np.ones(3))),
    ]
    for one in range(len(calls)):
        for other in range(len(calls)):
            if one != other:
                call = calls[one if comm.rank == 0 else other][1]
                with raises(MismatchError, calls[one][0], calls[other][0]):
                    call()
    works(comm)


def check_short_messages_arrive_before_a_meeting(comm):
    need_ranks(comm, 2)
    # Sent without waiting for who receives them; the sender is at the barrier long before.
    for _ in range(3):
        if comm.rank == 0:
            for number in range(300):
                for dest in range(1, comm.size):
                    comm.send_obj((number, "x" * (number % 200)), dest)
        comm.barrier()
        if comm.rank != 0:
            for number in range(300):
                assert comm.recv_obj(0)[0] == number
        if comm.rank == 0:
            for number in range(300):
                for dest in range(1, comm.size):
                    comm.send_obj(number, dest)
        else:
            for number in range(300):
                assert comm.recv_obj(0) == number
        comm.barrier()


def check_who_does_not_come_is_waited_for_and_joined(comm):
    need_ranks(comm, 2)
    made = nbmn.create_communicator("auto")
    abandoned = world().abandoned
    for absent in range(comm.size):
        generation = made._link.generation
        if comm.rank != absent:
            made.timeout = 0.1
            with raises(CollectiveTimeoutError, f"rank {comm.rank}", f"rank {absent}", "barrier"):
                made.barrier()
            made.timeout = comm.timeout
        assert world().renew() is True
        assert made._link.generation == generation + 1
        works(made)
    assert world().abandoned == abandoned


def check_an_interrupt_in_a_meeting(comm):
    need_ranks(comm, 2)
    made = nbmn.create_communicator("auto")
    for victim in range(comm.size):
        if comm.rank == victim:
            watcher = interrupt_when_waiting("barrier")
            with raises(KeyboardInterrupt):
                made.barrier()
            watcher.join()
        assert world().renew() is True
        works(made)


def check_ranks_that_went_different_ways_meet_again(comm):
    need_ranks(comm, 2)
    made = nbmn.create_communicator("auto")
    for _ in range(3):
        # Some meet, the others use messages: this can never end.
        made.timeout = 0.1
        link = made._link
        with raises(CollectiveTimeoutError):
            if comm.rank == 0 and link.ledger.meets:
                link.run(lambda calls: calls.Imeet(5))
            else:
                link.run(lambda calls: calls.Iallreduce(np.ones(3), np.ones(3)))
        assert world().renew() is True
        made.timeout = comm.timeout
        works(made)
        transport.barrier(made._link)


def check_slots_after_interrupts(comm):
    need_ranks(comm, 2)
    made = nbmn.create_communicator("shared_memory")
    assert isinstance(made._parts.gradients._host, SharedMemoryBackend)
    model = chainer.links.Linear(20, 10)
    for number in range(12):
        for repeat in range(number % 3):  # in either slot
            for param in model.params():
                param.grad = np.full(param.shape, number + repeat + made.rank, np.float32)
            made.multi_node_mean_grad(model)
            mean = np.float32(number + repeat + (made.size - 1) / 2)
            assert all((param.grad == mean).all() for param in model.params())
        if comm.rank == number % comm.size:
            made._link.fail(KeyboardInterrupt())
        else:
            made.timeout = 0.02
            with raises(CollectiveTimeoutError):
                made.multi_node_mean_grad(model)
            made.timeout = comm.timeout
        assert world().renew() is True
