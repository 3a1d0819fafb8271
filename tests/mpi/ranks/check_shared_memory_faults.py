"""Shared memory that is not to be had, or left in the middle, and given back when done with."""

import gc
import os
import warnings
from functools import partial
from pathlib import Path
from types import SimpleNamespace

from rank_tools import need_ranks
from shared_gradients import SHAPES, average, build, expect_means, fill, opened, parameters, step

from nbmn.communicators import lines, memory_files, neighbours, rounds, shared_memory, world


def check_no_memory_on_one_rank(comm):
    need_ranks(comm, 2)
    link, backend = opened(comm)
    model = build()
    step(comm, link, backend, model, 0)
    old = [param.grad for param in parameters(model)]  # keeps the window lent
    if comm.rank == 1:
        backend._pool.take = partial(_no_memory, backend._pool)
    for number in range(1, 4):
        step(comm, link, backend, model, number)  # by messages
    if comm.rank == 1:
        assert "no memory today" in backend.refusal
        del backend._pool.take
    for number in range(4, 6):
        step(comm, link, backend, model, number)
    del old


def _no_memory(pool, nbytes):
    raise shared_memory.SharedMemoryError("no memory today")


def check_refusal_is_said(comm):
    need_ranks(comm, 2)
    link, backend = opened(comm)
    original = os.memfd_create
    if comm.rank == comm.size - 1:
        os.memfd_create = _refuse
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            step(comm, link, backend, build(), 0)
    finally:
        os.memfd_create = original
    assert f"rank {comm.size - 1}: " in backend.refusal
    assert "not permitted" in backend.refusal
    assert [backend.refusal in str(w.message) for w in caught] == [True] * (comm.rank == 0)
    step(comm, link, backend, build(), 1)


def check_python_without_memory_files(comm):
    """As those that were built for older systems; the C library has them."""
    original, load = os.memfd_create, memory_files.ctypes.CDLL
    for without in ({comm.size - 1}, set(range(comm.size))):
        for libc_too in (False, True):
            if comm.rank in without:
                del os.memfd_create
                if libc_too:
                    memory_files.ctypes.CDLL = lambda *_, **__: object()
            try:
                told = rounds.run(lines.introduce(world()._state.control))
                link, backend = opened(comm)
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    step(comm, link, backend, build(), 0)
                step(comm, link, backend, build(shapes=SHAPES[:1]), 1)
            finally:
                os.memfd_create, memory_files.ctypes.CDLL = original, load
            assert comm.size == 1 or (backend.refusal is not None) == libc_too
            none = libc_too and comm.rank in without
            assert (told.open() is None) == (none or not lines.ORDERED)


def _refuse(*_):
    raise PermissionError(1, "Operation not permitted")


def check_memory_is_given_back(comm):
    model = build(shapes=[(1000, 1000), (7,)])

    def use():
        link, backend = opened(comm)
        for number in range(2):
            step(comm, link, backend, model, number)
        return link, backend

    def state():
        gc.collect()
        maps = Path("/proc/self/maps").read_text().count("memfd:nbmn")
        return maps, len(os.listdir("/proc/self/fd"))

    use()
    model.cleargrads()
    before = state()
    for _ in range(5):
        use()
        model.cleargrads()
    assert state() == before
    link, backend = use()
    assert comm.size == 1 or state() > before
    grads = [param.grad for param in parameters(model)]
    backend.close()
    expect_means(model, comm.size, 1)  # what was handed out stays
    del grads
    model.cleargrads()
    assert state()[0] == before[0]
    step(comm, link, backend, model, 3)  # and it can be used again


def check_an_interrupt_while_ranks_meet(comm):
    """Its memory can still be opened by the others, who are not yet there."""
    need_ranks(comm, 2)
    link, backend = opened(comm)
    objects, open_segment = neighbours.objects, neighbours.open_segment
    seen = []

    def interrupted(*args):
        objects.allgather(*args)
        raise KeyboardInterrupt

    def late(*args):
        if not seen:
            comm.recv_obj(1)
        seen.append(open_segment(*args))
        return seen[-1]

    fill(model := build(), comm.rank, 0)
    if comm.rank == 1:
        neighbours.objects = SimpleNamespace(allgather=interrupted)
    else:
        neighbours.open_segment = late
        link.timeout = 0.5
    try:
        average(link, backend, model)
    except (KeyboardInterrupt, TimeoutError):
        pass
    finally:
        neighbours.objects, neighbours.open_segment = objects, open_segment
    if comm.rank == 1:
        gc.collect()
        for rank in range(comm.size):
            if rank != 1:
                comm.send_obj("go on", rank)
    else:
        assert len(seen) == comm.size - 1
    world().renew()
    link.timeout = comm.timeout
    seen.clear()
    step(comm, link, backend, model, 1)


def check_after_an_interrupt(comm):
    need_ranks(comm, 2)
    link, backend = opened(comm, calibrate=True)
    model = build()
    for number in range(4):
        step(comm, link, backend, model, number)
        fill(model, comm.rank, 50)
        if comm.rank == 0:
            link.fail(KeyboardInterrupt())  # as if interrupted on the way
        else:
            link.timeout = 0.05
        try:
            average(link, backend, model)
        except (RuntimeError, TimeoutError):
            pass
        else:
            raise AssertionError("not broken")
        world().renew()
        link.timeout = comm.timeout
        step(comm, link, backend, model, 100 + number)
