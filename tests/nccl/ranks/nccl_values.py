"""Values of a model on GPUs are those of rank 0, in as many copies as there are dtypes."""

import chainer
import numpy as np
from host_runtime import DeviceArray, on_device
from nccl_standings import through_mpi
from nccl_tools import assert_right, faults, on_gpus, standin
from rank_tools import interrupt_when_waiting, need_ranks, raises

from nbmn.communicators import (
    CollectiveTimeoutError,
    RemoteRankError,
    device_values,
    transport,
    world,
)
from nbmn.communicators.errors import NcclError

DTYPES = ("float16", "float32", "float64", "int16", "bool", "complex64", "complex128")
SHAPES = ((3, 5), (7,), (), (0,), (1,), (2, 3, 4), (1001,))


def values_of(rank, dtype, number, seed=0):
    shape = SHAPES[number % len(SHAPES)]
    rng = np.random.default_rng([seed, rank, number])
    values = np.asarray(rng.normal(scale=3, size=shape))
    return np.asarray(values > 0 if dtype == "bool" else values).astype(dtype)


def model_of(rank, dtypes=DTYPES, count=7, place=on_device, seed=0):
    model = chainer.Link()
    with model.init_scope():
        for dtype in dtypes:
            for number in range(count):
                values = place(values_of(rank, dtype, number, seed), dtype)
                setattr(model, f"{dtype}_{number}", chainer.Parameter(values))
    return model


def assert_values(model, rank, kind=DeviceArray, seed=0):
    for name, param in model.namedparams():
        dtype, number = name.removeprefix("/").split("_")
        expected = values_of(rank, dtype, int(number), seed)
        assert type(param.array) is kind, name
        assert (param.array.dtype, param.array.shape) == (dtype, expected.shape)
        assert np.asarray(param.array).tobytes() == expected.tobytes(), name


def ways():
    """Return communicators by all ways that there are, and their runtimes."""
    direct, runtime = through_mpi()
    made = [(f"by {name}", on_gpus(name)) for name in ("pure_nccl", "non_cuda_aware", "dummy")]
    made += [("on one GPU", on_gpus(uuid="the only one"))]
    told = [(name, comm, comm._parts.gpu.runtime) for name, comm in made]
    return [*told, ("by MPI that takes memory of devices", direct, runtime)]


def check_values_of_every_dtype(comm):
    for name, made, _ in ways():
        model = model_of(made.rank)
        arrays = [param.array for _, param in sorted(model.namedparams())]
        assert made.replace_data(model) is (made.rank > 0), name
        assert_values(model, 0)
        after = [param.array for _, param in sorted(model.namedparams())]
        assert all(a is b for a, b in zip(arrays, after, strict=True)), name
        assert made.replace_data(model) is False, name


def check_copies_do_not_depend_on_how_many_parameters_there_are(comm):
    for name, made, runtime in ways():
        for count in (1, 3, 300):
            model = model_of(made.rank, ("float32", "int16"), count)
            made.bcast_data(model)  # what is settled first
            model = model_of(made.rank, ("float32", "int16"), count, seed=1)
            before = runtime.downloads, runtime.uploads, standin().operations()
            made.bcast_data(model)
            after = runtime.downloads, runtime.uploads, standin().operations()
            moved = tuple(b - a for a, b in zip(before, after, strict=True))
            assert_values(model, 0, seed=1)
            if name.startswith("by pure_nccl") or (name == "on one GPU" and comm.size == 1):
                assert moved == (0, 0, 2), (name, count, moved)
            elif name.startswith("by MPI"):
                assert moved == (0, 0, 0), (name, count, moved)
            else:
                assert moved == (2, 2 if made.rank else 0, 0), (name, count, moved)


def check_what_is_replaced_by_other_bits_is_said(comm):
    need_ranks(comm, 2)
    for name, made, _ in ways():
        for mine, roots, differs in [
            ([1.0, np.nan], [1.0, np.nan], False),
            ([1.0, 0.0], [1.0, -0.0], True),
            ([1.0, 2.0], [1.0, np.nextafter(2.0, 3.0)], True),
        ]:
            model = chainer.Link()
            with model.init_scope():
                model.same = chainer.Parameter(on_device([1, 2, 3], "int64"))
                model.w = chainer.Parameter(on_device(mine if made.rank else roots, "float64"))
            last = made.size - 1
            if made.rank != last:
                model.w.array[...] = roots
            assert made.replace_data(model) is (differs and made.rank == last), name
            assert np.asarray(model.w.array).tobytes() == np.array(roots).tobytes(), name


def check_layouts_in_memory(comm):
    for name, made, _ in ways():
        model = chainer.Link()
        expected = np.arange(24.0, dtype="f").reshape(4, 6)
        with model.init_scope():
            turned = on_device(np.zeros((6, 4)), "f").T
            turned[...] = expected + made.rank
            model.a = chainer.Parameter(turned)
            strided = on_device(np.full((4, 12), 9.0), "f")
            model.b = chainer.Parameter(strided[:, ::2])
            model.b.array[...] = expected - made.rank
        made.bcast_data(model)
        for param in (model.a, model.b):
            np.testing.assert_array_equal(np.asarray(param.array), expected, name)
        np.testing.assert_array_equal(np.asarray(strided[:, 1::2]), 9.0)


def check_models_that_are_on_gpus_of_some_ranks_only(comm):
    need_ranks(comm, 2)
    for on_gpu in (lambda rank: rank == 0, lambda rank: rank > 0):
        for name, made, _ in ways():
            kind, place = (DeviceArray, on_device) if on_gpu(made.rank) else (np.ndarray, np.array)
            model = model_of(made.rank, place=place)
            assert made.replace_data(model) is (made.rank > 0), name
            assert_values(model, 0, kind)


def check_models_half_on_the_host(comm):
    for name, made, runtime in ways():
        model = model_of(made.rank, ("float32",))
        host = model_of(made.rank, ("float32",), place=np.array)
        whole = chainer.Sequential(model, host)
        uploads = runtime.uploads
        assert made.replace_data(whole) is (made.rank > 0), name
        assert runtime.uploads - uploads == (made.rank > 0)
        assert_values(model, 0)
        assert_values(host, 0, np.ndarray)


def check_parameters_that_some_ranks_have_not_initialised(comm):
    need_ranks(comm, 2)
    for name, made, runtime in ways():
        last = made.size - 1
        model = chainer.Link()
        with model.init_scope():
            for key in "abcd":
                setattr(model, key, chainer.Parameter(np.float32(5)))
            if made.rank == last:
                model.a = chainer.Parameter(on_device([1.0, 2.0], "f"))
            if made.rank == 0:
                model.b = chainer.Parameter(on_device([3.0], "f"))
            model.c = chainer.Parameter(on_device([4.0 + made.rank], "f"))
        before = runtime.downloads
        assert made.replace_data(model) is (made.rank > 0), name
        assert runtime.downloads == before + 1
        for key, right in (("a", [1.0, 2.0]), ("b", [3.0]), ("c", [4.0])):
            np.testing.assert_array_equal(np.asarray(getattr(model, key).array), right, name)
        assert model.d.array is None
        # Nothing that a rank had is replaced now.
        lazy = chainer.Link()
        with lazy.init_scope():
            lazy.a = chainer.Parameter(np.float32(5))
            if made.rank == 0:
                lazy.a = chainer.Parameter(on_device([7.0], "f"))
        assert made.replace_data(lazy) is False, name
        np.testing.assert_array_equal(np.asarray(lazy.a.array), [7.0])


def check_more_than_one_message(comm):
    defaults = transport.bcast_in_place.__defaults__
    transport.bcast_in_place.__defaults__ = (100,)  # bytes
    try:
        for _, made, _ in ways():
            model = model_of(made.rank)
            made.bcast_data(model)
            assert_values(model, 0)
    finally:
        transport.bcast_in_place.__defaults__ = defaults


def check_models_on_two_gpus_of_a_rank(comm):
    """No averaging takes them; their values are broadcast, one copy for each GPU."""
    for name, made, runtime in ways():
        model = model_of(made.rank, ("float32",), 20)
        there = {id(param.array) for key, param in model.namedparams() if key.endswith("5")}
        runtime.device_of = lambda array, there=there: int(id(array) in there)
        runtime.use = lambda device: None
        downloads = runtime.downloads
        assert made.replace_data(model) is (made.rank > 0), name
        assert_values(model, 0)
        assert runtime.downloads - downloads == 2


def check_rank_that_cannot_is_an_error_on_all(comm):
    for name, made, runtime in ways():
        model = model_of(made.rank, ("float32",))
        made.bcast_data(model)
        if made.rank == made.size - 1:
            empty = runtime.empty

            def none_left(size, dtype):
                raise MemoryError("none left")

            runtime.empty = none_left
        with raises(RemoteRankError, "bcast_data", f"rank {made.size - 1}", "none left"):
            made.bcast_data(model)
        assert not made.broken, name
        if made.rank == made.size - 1:
            runtime.empty = empty
        model = model_of(made.rank, ("float32",), seed=2)
        made.bcast_data(model)
        assert_values(model, 0, seed=2)


def check_rank_that_cannot_take_what_came_is_an_error_on_all(comm):
    need_ranks(comm, 2)
    for name, made, _ in ways():
        if not name.startswith(("by pure_nccl", "by MPI")):
            continue  # those take it from host memory
        model = model_of(made.rank, ("float32",))
        made.bcast_data(model)
        unpack_into = device_values.unpack_into

        def none_left(*_):
            raise MemoryError("none left")

        if made.rank == made.size - 1:
            device_values.unpack_into = none_left
        try:
            with raises(RemoteRankError, "bcast_data", f"rank {made.size - 1}", "none left"):
                made.bcast_data(model)
        finally:
            device_values.unpack_into = unpack_into
        assert not made.broken, name
        model = model_of(made.rank, ("float32",), seed=2)
        made.bcast_data(model)
        assert_values(model, 0, seed=2)


def check_what_is_compared_piece_by_piece(comm):
    need_ranks(comm, 2)
    piece = device_values.PIECE
    device_values.PIECE = 10
    try:
        for name, made, _ in ways():
            model = model_of(made.rank, ("float32",))
            made.bcast_data(model)
            if made.rank == made.size - 1:
                model.float32_6.array[700] += 1  # in one of many pieces
            assert made.replace_data(model) is (made.rank == made.size - 1), name
    finally:
        device_values.PIECE = piece


def check_a_rank_that_gives_up_breaks_it(comm):
    staged = on_gpus(uuid="the only one" if comm.size > 1 else None, name="non_cuda_aware")
    runtime = staged._parts.gpu.runtime
    model = model_of(staged.rank, ("float32",))
    runtime.standin.kernel(runtime.compute_stream(), 500)
    staged.timeout = 0.1
    with raises(CollectiveTimeoutError, "its own GPU"):
        staged.bcast_data(model)
    assert staged.broken
    runtime.await_(runtime.record(runtime.compute_stream()))
    assert world().renew() is True
    staged.timeout = 15.0
    staged.bcast_data(model)
    assert_values(model, 0)


def check_interrupted_broadcasts_are_renewed(comm):
    need_ranks(comm, 2)
    for name, made, _ in ways()[:2]:
        model = model_of(made.rank, ("float32",))
        made.bcast_data(model)
        if made.rank == 0:
            watcher = interrupt_when_waiting("bcast_data")
            with raises(KeyboardInterrupt):
                made.bcast_data(model)
            watcher.join()
        assert world().renew() is True, name
        model = model_of(made.rank, ("float32",), seed=3)
        made.bcast_data(model)
        assert_values(model, 0, seed=3)
        assert_right(made)


def check_errors_of_nccl_break_and_heal(comm):
    need_ranks(comm, 2)  # alone, a rank does not wait for NCCL: its device does
    nccl = on_gpus()
    nccl.bcast_data(model_of(nccl.rank, ("float32",)))
    with faults() as fault:
        fault.fail(0, 2)
        with raises(NcclError, f"rank {nccl.rank}", "system error"):
            nccl.bcast_data(model_of(nccl.rank, ("float32",)))
    assert nccl.broken
    assert world().renew() is True
    model = model_of(nccl.rank, ("float32",), seed=4)
    nccl.bcast_data(model)
    assert_values(model, 0, seed=4)
