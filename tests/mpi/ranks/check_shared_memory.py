"""Gradients averaged in shared memory: right numbers, whatever came before and lies where."""

import numpy as np
from rank_tools import need_ranks
from shared_gradients import (
    SHAPES,
    SMALL_SHAPES,
    alike_on_all,
    average,
    build,
    by,
    expect_means,
    fill,
    open_link,
    opened,
    parameters,
    step,
    values,
)

from nbmn.communicators import calibration, models, shared_memory, streaming, world
from nbmn.communicators.window import SharedMemoryBackend, _Way


def check_dtypes_and_borders(comm):
    link, backend = opened(comm)
    for number, dtypes in enumerate([("f4",), ("f8",), ("f2",), ("f4", "f2", "f8")]):
        model = build(dtypes)
        for repeat in range(3):
            step(comm, link, backend, model, 10 * number + repeat)
        alike_on_all(comm, model)
    one_large = build(shapes=[(1000, 501)])
    step(comm, link, backend, one_large, 1)
    nothing = build(shapes=[(0, 2)])
    step(comm, link, backend, nothing, 1)
    assert backend.refusal is None


def check_with_and_without_compiled_passes(comm):
    """The same numbers, also where only some of the ranks have them."""
    compiled, exceeds = streaming._compiled, streaming.exceeds_caches
    assert streaming.problem() is None
    sides = [opened(comm) for _ in range(3)]
    try:
        streaming.exceeds_caches = lambda nbytes: True
        for number, dtypes in enumerate([("f4",), ("f8",), ("f4", "f2", "f8")]):
            model = build(dtypes, [*SHAPES, (3, 400_001)])
            for with_passes, side in zip([{*range(comm.size)}, {0}, set()], sides, strict=True):
                streaming._compiled = compiled if comm.rank in with_passes else lambda: "no"
                for repeat in range(3):
                    step(comm, *side, model, 10 * number + repeat)
                alike_on_all(comm, model)
    finally:
        streaming._compiled, streaming.exceeds_caches = compiled, exceeds


def check_no_messages_of_gradients(comm):
    link, backend = opened(comm)
    model = build()
    step(comm, link, backend, model, 0)
    assert (backend._neighbours is None) == (comm.size == 1)
    assert not backend._buffers or comm.size == 1


def check_changing_and_several_models(comm):
    sides = [opened(comm), opened(comm)]
    nets = [build(shapes=SHAPES[:4]), build(shapes=SHAPES), build(("f8",), SHAPES[2:])]
    for number in range(3):
        for n, net in enumerate(nets):
            fill(net, comm.rank, 100 * n + number)
        for n, net in enumerate(nets):
            average(*sides[(number + n) % 2], net)
        for n, net in enumerate(nets):
            # The others' averagings have not touched it.
            expect_means(net, comm.size, 100 * n + number)


def check_old_gradients_stay(comm):
    link, backend = opened(comm)
    model = build()
    history = []
    for number in range(shared_memory.MOST_LENT + 3):
        step(comm, link, backend, model, number)
        history.append([param.grad for param in parameters(model)])
    for number, grads in enumerate(history):
        for param, grad in zip(parameters(model), grads, strict=True):
            param.grad = grad
        expect_means(model, comm.size, number)
    assert len(backend._pool.segments) <= shared_memory.MOST_SEGMENTS


def check_a_mean_of_means(comm):
    link, backend = opened(comm)
    model = build()
    step(comm, link, backend, model, 7)
    for _ in range(3):  # the gradients lie in the window already
        average(link, backend, model)
        expect_means(model, comm.size, 7, exact=False)
    for param in parameters(model):
        param.grad *= comm.rank + 1  # in place, as hooks do; nobody else may see it
    average(link, backend, model)
    for param in parameters(model):
        param.grad /= (comm.size + 1) / 2
    expect_means(model, comm.size, 7, exact=False)


def check_views_are_this_ranks_own(comm):
    link, backend = opened(comm)
    model = build()
    step(comm, link, backend, model, 3)
    comm.barrier()
    for param in parameters(model):
        param.grad += comm.rank
    comm.barrier()
    for param in parameters(model):
        param.grad -= comm.rank
    expect_means(model, comm.size, 3, exact=False)


def check_gradients_that_share_memory(comm):
    sides = [(opened(comm), (200, 300)), *((by(comm, way), (20, 30)) for way in _Way)]
    for (link, backend), shape in sides:
        model = build(shapes=[shape] * 4)
        a, b, c, d = parameters(model)
        for _ in range(3):
            model.cleargrads()
            a.grad = b.grad = np.full(a.shape, comm.rank, np.float32)
            c.grad = np.broadcast_to(np.float32(comm.rank), c.shape)
            d.grad = np.full(d.shape[::-1], comm.rank, np.float32).T
            if comm.rank == 0:
                b.grad = np.full(b.shape, 10, np.float32)
            average(link, backend, model)
            for param in (a, c, d):
                np.testing.assert_array_equal(param.grad, np.float32((comm.size - 1) / 2))
            right = np.float32(10 + sum(range(1, comm.size))) / np.float32(comm.size)
            np.testing.assert_array_equal(b.grad, right)


def check_missing_gradients(comm):
    link, backend = opened(comm)
    model = build()
    for skipped in range(comm.size):
        fill(model, comm.rank, 5)
        if comm.rank == skipped:
            model.cleargrads()
        average(link, backend, model)
        for n, param in enumerate(parameters(model)):
            others = [r for r in range(comm.size) if r != skipped]
            total = sum((values(param, r, 5, n) for r in others), np.zeros_like(param.array))
            if not others:
                assert param.grad is None
            else:
                np.testing.assert_allclose(param.grad, total / comm.size, rtol=1e-5, atol=1e-6)


def check_share_of_ranks(comm):
    need_ranks(comm, 2)
    link, backend = opened(comm)
    model = build()
    for _ in range(2):
        fill(model, comm.rank, 5)
        share = models.Share(comm.rank != 0, comm.size - 1)
        average(link, backend, model, share=share)
        for n, param in enumerate(parameters(model)):
            total = sum(values(param, r, 5, n) for r in range(1, comm.size))
            np.testing.assert_allclose(param.grad, total / (comm.size - 1), rtol=1e-5, atol=1e-6)


def check_wire(comm):
    link, backend = opened(comm)
    model = build()
    for _ in range(2):
        fill(model, comm.rank, 6)
        average(link, backend, model, wire="f2")
        for n, param in enumerate(parameters(model)):
            rounded = [values(param, r, 6, n).astype("f2").astype("f4") for r in range(comm.size)]
            assert param.grad.dtype == np.float32
            expected = sum(rounded) / np.float32(comm.size)
            np.testing.assert_allclose(param.grad, expected, rtol=1e-5, atol=1e-6)


def check_calibration_settles_alike(comm):
    link, backend = opened(comm, calibrate=True)
    for model in (build(), build(shapes=SMALL_SHAPES)):
        for number in range(2 * calibration.ROUNDS + 3):
            step(comm, link, backend, model, number)
    if comm.size > 1:
        best = list(backend._calibration._best.values())
        assert len(best) == 2
        assert comm.allgather_obj(best) == [best] * comm.size


def check_every_way_gives_the_same_bits(comm):
    sides = [by(comm, way) for way in _Way]
    for number, dtypes in enumerate([("f4",), ("f8",), ("f2",), ("f4", "f2", "f8")]):
        model = build(dtypes, SMALL_SHAPES)
        for side in sides:
            for again in range(3):
                step(comm, *side, model, 10 * number + again)


def check_every_way_rounds_to_the_wire_alike(comm):
    sides = [by(comm, way) for way in _Way]
    model = build(("f8", "f4", "f2"), SMALL_SHAPES)
    for wire in ("f2", "f4", "f8"):
        for side in sides:
            for again in range(2):
                fill(model, comm.rank, again)
                average(*side, model, wire=wire)
                for n, param in enumerate(parameters(model)):
                    wide = np.promote_types(param.dtype, np.float32)
                    sent = [values(param, rank, again, n).astype(wire) for rank in range(comm.size)]
                    total = sum(part.astype(param.dtype).astype(wide) for part in sent)
                    expected = (total / wide.type(comm.size)).astype(param.dtype)
                    np.testing.assert_array_equal(param.grad, expected)


def check_ways_in_turn(comm):
    link, backend = opened(comm)
    nets = [build(shapes=SMALL_SHAPES), build(("f2", "f4"), SMALL_SHAPES[:2])]
    chosen = np.random.RandomState(5).randint(0, len(_Way), 40)
    for number, chance in enumerate(chosen):
        way = _Way(chance)
        backend._ways = lambda _, way=way: (way,)
        model = nets[number % 2]
        if number % 5 == 0:  # one rank has none: the ranks exchange tables first
            fill(model, comm.rank, number)
            if comm.rank == number % comm.size:
                model.cleargrads()
            average(link, backend, model)
        elif number % 7 == 0:
            fill(model, comm.rank, number)
            kept = [param.grad.copy() for param in parameters(model)]
            average(link, backend, model, stale=comm.rank == 0)
            for param, grad in zip(parameters(model), kept, strict=True):
                np.testing.assert_array_equal(param.grad, grad)
        else:
            step(comm, link, backend, model, number)


def check_several_hosts(comm):
    need_ranks(comm, 3)
    for pattern in ([0, 0, 1, 1], [0, 1, 0, 1], [0, 0, 0, 1]):
        hosts = [pattern[rank % 4] for rank in range(comm.size)]
        here = [rank for rank in range(comm.size) if hosts[rank] == hosts[comm.rank]]
        shards = min(hosts.count(host) for host in set(hosts))
        link = open_link()
        link.timeout = comm.timeout
        place = here.index(comm.rank)
        between = world().split(link, place if place < shards else None, hosts[comm.rank])
        backend = SharedMemoryBackend(link, here, shards, between)
        for number in range(3):
            model = build(("f4", "f2"))
            step(comm, link, backend, model, number, exact=False)
            alike_on_all(comm, model)
        assert backend.refusal is None
