"""Ranks of one host agree in shared memory: who can, what the others see, and after faults."""

import gc
import random
import sys
from contextlib import suppress

import chainer
import numpy as np
from rank_tools import interrupt_when_waiting, need_ranks, raises

import nbmn
from nbmn.communicators import (
    CollectiveTimeoutError,
    MismatchError,
    RemoteRankError,
    lines,
    transport,
    world,
)
from nbmn.communicators.agreement import Vote, agree, any_of
from nbmn.communicators.meetings import Meeting
from nbmn.communicators.window import SharedMemoryBackend, _Way


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


def check_an_interrupt_under_a_tracer(comm):
    """As of a debugger: it strikes between lines that are one step otherwise."""
    need_ranks(comm, 2)
    code = Meeting.__init__.__code__
    places = sorted({line for *_, line in code.co_lines() if line})
    made = nbmn.create_communicator("auto")
    abandoned = world().abandoned
    for place in [*places[1:], None]:
        made.barrier()
        if comm.rank == 0:
            with raises(KeyboardInterrupt):
                _trace(code, place, made.barrier)
        else:
            made.timeout = 0.05
            with suppress(CollectiveTimeoutError):  # shown, the word is seen
                made.barrier()
            made.timeout = comm.timeout
        world().renew()
        works(made)
        made.barrier()
    assert world().abandoned == abandoned


def _trace(code, place, call):
    """Call, and raise KeyboardInterrupt before a line of some code, or where it returns."""

    def within(frame, event, _):
        if (event == "return") if place is None else (event, frame.f_lineno) == ("line", place):
            raise KeyboardInterrupt
        return within

    before = sys.gettrace()
    sys.settrace(lambda frame, *_: within if frame.f_code is code else None)
    try:
        call()
    finally:
        sys.settrace(before)


class _Limit(Exception):
    """Raised by the handler of a signal, say, wherever a rank is."""


def _average(made, model, number, present=True):
    """Average gradients, and require the right means."""
    for param in model.params():
        param.grad = np.full(param.shape, number + made.rank, np.float32)
    if not present:
        model.b.grad = None
    made.multi_node_mean_grad(model)
    mean = np.float32(number + (made.size - 1) / 2)
    assert (model.W.grad == mean).all(), (model.W.grad, mean)


def check_means_are_right_after_a_rank_left_one(comm):
    need_ranks(comm, 2)
    for victim in range(2):
        for at in range(1, 4):
            made, model = nbmn.create_communicator("shared_memory"), chainer.links.Linear(20, 10)
            made.timeout = comm.timeout
            for number in range(at):
                _average(made, model, 100 * number)
            backend = made._parts.gradients
            prepare, mean = backend.prepare, backend.mean
            others = [rank for rank in range(comm.size) if rank != victim]

            def left(prepared, backend=backend):
                del backend.mean
                raise _Limit

            def again(request, prepare=prepare, backend=backend, others=others):
                """Prepare the next ones before the others have read these."""
                prepared = prepare(request)
                del backend.prepare
                for rank in others:
                    comm.send_obj("go on", rank)
                return prepared

            def late(prepared, mean=mean, backend=backend, victim=victim):
                del backend.mean
                comm.recv_obj(victim)
                return mean(prepared)

            if comm.rank == victim:
                backend.mean = left
                with raises(_Limit):
                    _average(made, model, 500)
                backend.prepare = again
            else:
                backend.mean = late
                _average(made, model, 500)
            for number in range(6, 12):
                _average(made, model, 100 * number)
            made.barrier()


def check_who_leaves_an_averaging_in_windows_is_told(comm):
    need_ranks(comm, 2)
    made, model = nbmn.create_communicator("shared_memory"), chainer.links.Linear(400, 300)
    made.timeout = 2
    for number in range(3):
        _average(made, model, 100 * number)
    backend = made._parts.gradients
    if comm.rank == 0:
        mean, backend.mean = backend.mean, None
        with raises(TypeError, "NoneType"):
            _average(made, model, 500)
        backend.mean = mean
    with raises(MismatchError, "averaged windows", "multi_node_mean_grad"):
        _average(made, model, 500 + 100 * (comm.rank == 0))
    world().renew()
    made.timeout = comm.timeout
    _average(made, model, 700)


def check_ranks_that_try_different_ways(comm):
    need_ranks(comm, 2)
    made, model = nbmn.create_communicator("auto"), chainer.links.Linear(20, 10)
    made.timeout = comm.timeout
    for number in range(3):
        _average(made, model, 100 * number)
    host = made._parts.gradients._host
    host._calibrate = True
    if comm.rank == 0:  # is further, after an averaging of its own
        host._averaged += 1
        host._way = lambda *_: _Way.WINDOWS
    before = host.restart

    def restart():
        vars(host).pop("_way", None)
        before()

    host.restart = restart
    for number in range(3, 6):
        _average(made, model, 100 * number)
    assert "_way" not in vars(host)


def check_what_cannot_be_prepared_together(comm):
    """The ranks' gradients are not the same ones: they are prepared again, for all of them."""
    need_ranks(comm, 2)
    made, model = nbmn.create_communicator("shared_memory"), chainer.links.Linear(20, 10)
    made.timeout = comm.timeout
    backend = made._parts.gradients
    prepare, calls = backend.prepare, []

    def fails_again(request):
        calls.append(request)
        if len(calls) == 2:
            raise MemoryError("no memory today")
        return prepare(request)

    for number in range(4):
        _average(made, model, 100 * number)
        if comm.rank == 1:
            calls.clear()
            backend.prepare = fails_again
        with raises(RemoteRankError, "on rank 1", "no memory today"):
            _average(made, model, 500, present=comm.rank != 1)
        backend.prepare = prepare
        assert made.broken is None
        _average(made, model, 600, present=comm.rank != 1)
        _average(made, model, 700)


def check_a_vote_on_something_else_ends_no_barrier(comm):
    need_ranks(comm, 2)
    link = nbmn.create_communicator("flat")._link
    link.timeout = comm.timeout
    for one, other in [(agree, any_of), (any_of, agree)]:
        with raises(MismatchError, "windows", "slots"):
            if comm.rank == 0:
                one(link, "windows", False)
            else:
                other(link, "slots", False)
    votes = Vote(link, "the same", step=comm.rank == 0).outcome()
    assert not votes.unanimous


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
