"""CuPy's own arrays, streams and events, and its driver of NCCL, without a device.

Memory is the host's; kernels of nbmn are compiled for the host and run there, CuPy's are not run;
streams and events are the stand-in's.
"""

import atexit
import os
import tempfile
import threading
import warnings
from pathlib import Path

import device_standin
from host_runtime import Standin

_standin = Standin()
_tickets = {}
_place = {"bus": f"{os.getpid():08x}:07:00.0"}
_copies = []
"""Ways of the copies that were made."""


def _copy(to, source, size, kind, *_):
    _copies.append({1: "up", 2: "down"}.get(kind, "within"))
    device_standin.copy(to, source, size)


def _record(event, stream, *_):
    _tickets[event] = (stream, _standin.record(stream) if stream else 0)
    return 0


def _query(event):
    stream, ticket = _tickets.get(event, (0, 0))
    return 0 if not stream or _standin.reached(stream, ticket) else 600


def _hold(stream, event, *_):
    while _query(event):
        threading.Event().wait(1e-3)


device_standin.ANSWERS |= {
    "streamCreateWithFlags": lambda flags: _standin.stream(),
    "streamCreateWithPriority": lambda flags, priority: _standin.stream(),
    "memcpy": _copy,
    "memcpyAsync": _copy,
    "eventRecord": _record,
    "eventQuery": _query,
    "eventSynchronize": lambda event: _hold(0, event),
    "streamWaitEvent": _hold,
    # CuPy's UUIDs end before a zero byte.
    "getDeviceProperties": lambda device: {"name": b"Stand-in", "uuid": b""},
    "deviceGetPCIBusId": lambda device: _place["bus"],
}

import chainer  # noqa: E402 - after the stand-in
import cupy  # noqa: E402
import host_kernel  # noqa: E402
import numpy as np  # noqa: E402
from nccl_tools import counted, faults, interrupt_in_nccl, nccl_of  # noqa: E402
from rank_tools import raises  # noqa: E402

import nbmn  # noqa: E402
from nbmn.communicators import world  # noqa: E402
from nbmn.communicators.device_backend import DeviceBackend  # noqa: E402
from nbmn.gpu.cupy_runtime import CupyRuntime  # noqa: E402


def zeros(nbytes):
    """Memory in which what a kernel of CuPy's would have written is zeros."""
    memory = cupy.get_default_memory_pool().malloc(nbytes)
    device_standin.fill(memory.ptr, 0, nbytes)
    return memory


cupy.cuda.set_allocator(zeros)
# CuPy asks for memory to the end, when functions of Python's are no more.
atexit.register(cupy.cuda.set_allocator, cupy.get_default_memory_pool().malloc)
host_kernel.stand_for_device(Path(tempfile.mkdtemp(dir=os.environ["NBMN_NCCL_STANDIN"])))


def model_of(comm, dtype="float32", seed=0):
    """Return a model on the device, and the means of its gradients."""
    model = chainer.Link()
    means = []
    with model.init_scope():
        for number, shape in enumerate([(3, 5), (7,), (1,)]):
            param = chainer.Parameter(cupy.asarray(np.zeros(shape, dtype)))
            setattr(model, f"p{number}", param)
            grads = [
                np.asarray(np.random.default_rng([seed, rank, number]).normal(size=shape), dtype)
                for rank in range(comm.size)
            ]
            param.grad = cupy.asarray(grads[comm.rank])
            means.append(np.mean(np.asarray(grads, np.float64), axis=0))
    return model, means


def assert_averages(comm, dtype="float32", tolerance=1e-6, seed=0):
    model, means = model_of(comm, dtype, seed)
    comm.multi_node_mean_grad(model)
    for number, mean in enumerate(means):
        grad = getattr(model, f"p{number}").grad
        assert type(grad) is cupy.ndarray
        assert (grad.shape, grad.dtype) == (mean.shape, dtype)
        np.testing.assert_allclose(grad.get(), mean, rtol=tolerance, atol=tolerance)
    return model


def check_means_by_nccl(comm):
    nccl = nbmn.create_communicator("pure_nccl", timeout=15)
    operations = _standin.operations()
    model = assert_averages(nccl)
    first, second = model.p0.grad.data, model.p1.grad.data
    assert first.mem is second.mem
    assert second.ptr - first.ptr == 64
    assert_averages(nccl, "float64", 1e-14)
    assert_averages(nccl, "float16", 1e-3)
    assert _standin.operations() == operations + 3
    before = counted()
    nccl.finalize()
    assert counted() == (before[0], before[1], before[2] + 1)


def check_wire_dtypes(comm):
    nccl = nbmn.create_communicator("auto", timeout=15)
    for wire, tolerance in [("float16", 2e-3), ("bfloat16", 2e-2), ("float64", 1e-6)]:
        nccl.set_config("allreduce_grad_dtype", wire)
        assert_averages(nccl, "float32", tolerance)
    assert _standin.inits()


def check_sums_and_broadcasts(comm):
    nccl = nbmn.create_communicator("auto", timeout=15)
    operations = _standin.operations()
    total = nccl.allreduce(cupy.asarray(np.arange(6, dtype="f").reshape(2, 3)))
    assert type(total) is cupy.ndarray
    np.testing.assert_array_equal(total.get(), nccl.size * np.arange(6).reshape(2, 3))
    assert _standin.operations() == operations + 1
    gathered = nccl.allgather(cupy.asarray(np.full(3, nccl.rank)))
    assert [part.get().tolist() for part in gathered] == [[r] * 3 for r in range(nccl.size)]
    model, _ = model_of(nccl)
    model.p0.array.set(np.full((3, 5), nccl.rank + 1.0, "f"))
    nccl.bcast_data(model)
    assert type(model.p0.array) is cupy.ndarray
    np.testing.assert_array_equal(model.p0.array.get(), np.ones((3, 5)))


def many(rank, dtypes, count):
    model = chainer.Link()
    with model.init_scope():
        for dtype in dtypes:
            for number in range(count):
                values = np.asarray(np.arange(number % 7 + 1) + 10 * rank + number, dtype)
                setattr(model, f"{dtype}_{number}", chainer.Parameter(cupy.asarray(values)))
    return model


def check_broadcasts_of_values_take_as_many_copies_as_there_are_dtypes(comm):
    dtypes = ("float32", "int16")
    for name, operations in (("pure_nccl", 2), ("flat", 0)):
        made = nbmn.create_communicator(name, timeout=15)
        for count in (1, 3, 200):
            made.bcast_data(many(made.rank, dtypes, count))  # what is settled first
            model, right = many(made.rank, dtypes, count), many(0, dtypes, count)
            before = _standin.operations()
            _copies.clear()
            made.bcast_data(model)
            copied = _copies.count("down"), _copies.count("up")
            assert _standin.operations() - before == operations
            if operations:
                # Whether anything is another value.
                assert copied == (1 if made.rank else 0, 0), (name, count, copied)
            else:
                assert copied == (2, 2 if made.rank else 0), (name, count, copied)
            for (_, param), (_, other) in zip(
                sorted(model.namedparams()), sorted(right.namedparams()), strict=True
            ):
                assert type(param.array) is cupy.ndarray
                assert param.array.get().tobytes() == other.array.get().tobytes()


def check_values_that_are_initialised_on_the_device(comm):
    for name in ("pure_nccl", "flat"):
        made = nbmn.create_communicator(name, timeout=15)
        model = chainer.Link()
        with model.init_scope():
            model.w = chainer.Parameter()
        model.to_device("@cupy:0")
        if made.rank == 0:
            model.w.array = cupy.asarray(np.arange(6, dtype="f"))
        made.bcast_data(model)
        assert type(model.w.array) is cupy.ndarray
        np.testing.assert_array_equal(model.w.array.get(), np.arange(6))


def check_one_gpu_for_all(comm):
    own = _place["bus"]
    _place["bus"] = "0000:07:00.0"
    try:
        nccl = nbmn.create_communicator("pure_nccl", timeout=15)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for seed in range(3):
                assert_averages(nccl, seed=seed)
        notes = [str(w.message) for w in caught if "are on one GPU" in str(w.message)]
        assert len(notes) == (nccl.rank == 0 and nccl.size > 1), notes
        assert (nccl._parts.gradients.refusal is None) == (nccl.size == 1)
    finally:
        _place["bus"] = own


def check_flat_is_staged(comm):
    inits = _standin.inits()
    flat = nbmn.create_communicator("flat", timeout=15)
    assert_averages(flat)
    assert_averages(flat, "float16", 1e-3)
    assert _standin.inits() == inits


def check_double_buffering(comm):
    nccl = nbmn.create_communicator("pure_nccl", timeout=15)
    operations = _standin.operations()
    model, _ = model_of(nccl)
    background = nbmn.create_multi_node_optimizer(
        chainer.optimizers.SGD(), nccl, double_buffering=True
    )
    background.setup(model)
    applied = []
    object.__setattr__(background, "_compute", lambda step: None)
    object.__setattr__(background, "_apply", applied.append)
    for step in range(3):
        for number in range(3):
            param = getattr(model, f"p{number}")
            param.grad = cupy.asarray(np.full(param.shape, step + nccl.rank, "f"))
        background.update()
    background.flush()
    means = [m.arrays[0] for m in applied if m is not None]
    assert [type(mean) for mean in means] == [cupy.ndarray] * 3
    got = [float(mean.get()[0, 0]) for mean in means]
    np.testing.assert_allclose(got, np.arange(3) + (nccl.size - 1) / 2)
    # Of values at setup and before the first step, then of gradients.
    assert _standin.operations() == operations + 2 + 3


def check_double_buffering_goes_on_on_the_stream_of_training(comm):
    nccl = nbmn.create_communicator("pure_nccl", timeout=15)
    model, _ = model_of(nccl)
    optimizer = nbmn.create_multi_node_optimizer(
        chainer.optimizers.SGD(), nccl, double_buffering=True
    )
    optimizer.setup(model)
    object.__setattr__(optimizer, "_compute", lambda step: None)
    object.__setattr__(optimizer, "_apply", lambda means: None)
    seen, held = [], []
    settle, hold = DeviceBackend._goes_directly, CupyRuntime.hold

    def noted(self, *args):
        seen.append((threading.current_thread().name, cupy.cuda.get_current_stream().ptr))
        return settle(self, *args)

    def noted_hold(self, stream, event):
        held.append((threading.current_thread().name, stream.ptr))
        hold(self, stream, event)

    DeviceBackend._goes_directly, CupyRuntime.hold = noted, noted_hold
    streams = [cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream.null]
    try:
        for stream in streams:
            with stream:
                for param in model.params():
                    param.grad = cupy.asarray(np.full(param.shape, nccl.rank, "f"))
                optimizer.update()
        optimizer.flush()
    finally:
        DeviceBackend._goes_directly, CupyRuntime.hold = settle, hold
    background = [stream for name, stream in seen if name == "nbmn-mean"]
    assert background == [stream.ptr for stream in streams]
    # What was begun on one stream is taken up on another.
    main = [stream for name, stream in held if name == threading.main_thread().name]
    # Alone, this rank does not wait for the broadcast of values: its stream does.
    values = [streams[0].ptr] if nccl.size == 1 else []
    assert main == [*values, *[streams[1].ptr] * 2]


def check_interrupt_and_renewal(comm):
    if comm.size == 1:
        return
    nccl = nbmn.create_communicator("pure_nccl", timeout=15)
    assert_averages(nccl)
    aborts = _standin.aborts()
    with faults() as fault:
        fault.block(nccl.rank == 0)
        model, _ = model_of(nccl)
        watcher = interrupt_in_nccl(nccl)
        with raises(KeyboardInterrupt):
            nccl.multi_node_mean_grad(model)
        watcher.join()
    assert world().renew() is True
    assert_averages(nccl, seed=1)
    assert _standin.aborts() == aborts + 1
    assert nccl_of(nccl)._channel.device == 0


def check_the_runtime(comm):
    runtime = CupyRuntime()
    assert runtime.problem() is None
    assert runtime.version() == f"CuPy {cupy.__version__}"
    assert runtime.current_device() == 0
    assert (runtime.uuid(0), runtime.bus_id(0)) == ("", _place["bus"])
    host = runtime.pinned(5, np.dtype("f8"))
    host[...] = np.arange(5)
    array = runtime.empty(5, np.dtype("f8"))
    runtime.upload(host, array)
    np.testing.assert_array_equal(array.get(), np.arange(5))
    back = runtime.pinned(5, np.dtype("f8"))
    runtime.download(array, back)
    np.testing.assert_array_equal(back, np.arange(5))
    assert runtime.pointer(array) == array.data.ptr
    assert runtime.device_of(array) == 0
    import ml_dtypes

    assert runtime.empty(3, np.dtype(ml_dtypes.bfloat16)).dtype == np.uint16
    stream = runtime.stream()
    assert runtime.handle(stream) == stream.ptr
    _standin.kernel(stream.ptr, 30)
    event = runtime.record(stream)
    forgotten, check = [], cupy.cuda.runtime.check_status
    cupy.cuda.runtime.check_status = lambda status: (forgotten.append(status), check(status))
    assert not runtime.reached(event)
    cupy.cuda.runtime.check_status = check
    assert forgotten == [600]
    runtime.hold(runtime.compute_stream(), event)
    assert runtime.reached(event)
    for error in (700, 719):  # of a kernel, for ever after
        cupy.cuda.runtime.eventQuery, before = (lambda _, e=error: e), cupy.cuda.runtime.eventQuery
        try:
            with raises(cupy.cuda.runtime.CUDARuntimeError):
                runtime.reached(event)
        finally:
            cupy.cuda.runtime.eventQuery = before
