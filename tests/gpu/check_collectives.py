"""Every collective and dtype on the GPU, on one rank, by NCCL where that is what does it."""

from __future__ import annotations

from functools import partial

import chainer
import numpy as np
from gpu_tools import STANDIN, Report, each
from gpu_values import SHAPES, averages, broadcasts, model_of, put, same, valued, wire_dtype

import nbmn
from nbmn.communicators import world
from nbmn.communicators.device_values import DeviceValues, _replace
from nbmn.gpu.nccl import AVG, SUM, kind_of
from nbmn.gpu.packing import pack
from nbmn.gpu.runtime import this_gpu

SUMMED = (
    *("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
)
CARRIED = ("bool", *SUMMED)
NARROW = ("int8", "uint8", "int16", "uint16")
"""What CuPy widens before it is summed."""


def run(report: Report) -> None:
    comm = nbmn.create_communicator("pure_nccl", timeout=60)
    each(
        partial(means, comm, report),
        partial(sums, comm, report),
        partial(carried, comm, report),
        partial(objects, comm),
        partial(broadcast, comm),
        partial(functions, comm),
        partial(own_calls, report),
    )
    report("communicators of MPI", abandoned=world().abandoned)
    comm.finalize()


def operations(comm) -> int:
    """How many operations NCCL was given."""
    return comm._parts.gradients._direct.carrier._channel.operations


def means(comm, report: Report) -> None:
    averages(comm)
    assert comm._parts.gradients.refusal is None
    before = operations(comm)
    for seed, dtype in enumerate(("float16", "float32", "float64")):
        averages(comm, dtype, seed)
    assert operations(comm) == before + 3
    model, _ = model_of(0, 1)
    model.p1.grad = None
    comm.multi_node_mean_grad(model)
    assert model.p1.grad is None
    comm.multi_node_mean_grad(model, zero_fill=True)
    same(model.p1.grad, np.zeros(SHAPES[1], "f"), kernels=True)
    report("means over NCCL", dtypes=3, operations=operations(comm) - before)


def samples(dtype: str) -> list[np.ndarray]:
    rng = np.random.default_rng(len(dtype))
    made = [rng.integers(0, 2 if dtype == "bool" else 100, shape) for shape in ((2, 3), (), (0, 4))]
    return [np.asarray(values, dtype) for values in [*made, rng.integers(0, 2, 100_003)]]


def sums(comm, report: Report) -> None:
    before = operations(comm)
    by_nccl = 0
    for dtype in SUMMED:
        narrow = dtype in NARROW
        for host in samples(dtype):
            what = f"allreduce {dtype} {host.shape}"
            same(comm.allreduce(put(host)), host, what=what, kernels=narrow)
        given = samples(dtype)
        total = comm.allreduce([put(host) for host in given])
        for got, host in zip(total, given, strict=True):
            same(got, host, what=f"allreduce of several, {dtype}", kernels=narrow)
        by_nccl += operations(comm) > before
        before = operations(comm)
    strided = np.arange(24, dtype="f").reshape(4, 6)
    same(comm.allreduce(put(strided).T), strided.T, what="strided", kernels=True)
    report("sums", dtypes=len(SUMMED), of_them_by_nccl=by_nccl)


def carried(comm, report: Report) -> None:
    for dtype in CARRIED:
        for host in samples(dtype):
            what = f"{dtype} {host.shape}"
            array = put(host)
            assert comm.bcast(array) is array
            same(comm.gather(array)[0], host, what=f"gather {what}")
            same(comm.allgather(array)[0], host, what=f"allgather {what}")
            same(comm.alltoall([array])[0], host, what=f"alltoall {what}")
            same(comm.scatter([array]), host, what=f"scatter {what}")
        both = comm.allgather((put(samples(dtype)[0]), put(samples(dtype)[1])))
        same(both[0][1], samples(dtype)[1], what=f"allgather of a tuple, {dtype}")
    report("arrays carried", dtypes=len(CARRIED), collectives=5)


def objects(comm) -> None:
    host = np.arange(5, dtype="f")
    told = comm.allgather_obj({"array": put(host), "text": "x"})
    same(told[0]["array"], host, what="allgather_obj")
    same(comm.bcast_obj(put(host)), host, what="bcast_obj")
    same(comm.allreduce_obj(put(host)), host, what="allreduce_obj", kernels=True)
    same(comm.gather_obj(put(host))[0], host, what="gather_obj")


def broadcast(comm) -> None:
    model, _ = model_of(0, 1)
    values = np.arange(15, dtype="f").reshape(3, 5)
    model.p0.array = put(values)
    comm.bcast_data(model)
    same(model.p0.array, values, what="bcast_data")
    assert comm.replace_data(model) is False
    broadcasts(comm)
    replaced_by_others(comm)


def replaced_by_others(comm) -> None:
    """What another rank than the root does with what it gets: compares, and overwrites."""
    carrier, runtime = comm._parts.gradients._direct.carrier, this_gpu().runtime
    values = DeviceValues(comm._link, runtime, carrier)
    model, hosts = valued(0)
    _, others = valued(1)
    arrays = [getattr(model, f"v{number}").array for number in range(len(hosts))]
    for expected, changes in ((hosts, False), (others, True), (others, False)):
        packed = values.prepare(arrays, 0, root=1)
        for packing, buffer in packed.fresh:
            pack(buffer, packing, [put(host) for host in expected])
        told = _replace(packed)
        assert STANDIN or told is changes
        for array, host in zip(arrays, expected, strict=True):
            same(array, host, what=f"overwritten {host.dtype}")


def functions(comm) -> None:
    """Chainer's side of them, and of batch normalization, at one rank."""
    host = np.random.default_rng(3).normal(size=(6, 4)).astype("f")
    x = chainer.Variable(put(host))
    (y,) = nbmn.functions.allgather(comm, x)
    y.grad = put(2 * host)
    y.backward()
    same(y.array, host, what="functions.allgather")
    same(x.grad, 2 * host, what="functions.allgather's gradient", kernels=True)
    links = [
        nbmn.links.MultiNodeBatchNormalization(4, comm),
        chainer.links.BatchNormalization(4),
    ]
    outputs = []
    for link in links:
        link.to_device("@cupy:0")
        v = chainer.Variable(put(host))
        y = link(v)
        y.grad = put(host * host)
        y.backward()
        outputs.append((y.array, v.grad, link.avg_mean))
    for got, expected in zip(*outputs, strict=True):
        same(got, expected.get(), 1e-5, "batch normalization", kernels=True)


def own_calls(report: Report) -> None:
    """Every operation of NCCL's by the driver itself, with every dtype that NCCL has."""
    gpu = this_gpu()
    nccl, runtime = gpu.nccl, gpu.runtime
    made = nccl.init(1, nccl.unique_id(), 0)
    stream = runtime.stream()
    dtypes = ("int8", "uint8", "int32", "uint32", "int64", "uint64")
    dtypes = (*dtypes, "float16", "float32", "float64", "bfloat16")
    for name in dtypes:
        dtype = wire_dtype(name)
        host = np.arange(100).astype(dtype)
        bits = host.view("u2") if name == "bfloat16" else host
        given = put(bits)
        calls = operations_of(nccl, made, given.data.ptr, kind_of(dtype)[0], runtime.handle(stream))
        for operation, call in calls.items():
            result = put(np.full_like(bits, 7))
            runtime.hold(stream, runtime.record(runtime.compute_stream()))
            call(runtime.pointer(result))
            event = runtime.record(stream)
            runtime.hold(runtime.compute_stream(), event)
            same(result, bits, what=f"NCCL's {operation} of {name}")
            assert runtime.reached(event)
    assert made.state() == 0
    made.destroy()
    report("NCCL's own calls", operations=len(calls), dtypes=len(dtypes))


def operations_of(nccl, made, at: int, kind: int, stream: int):
    """Return NCCL's operations on 100 elements, by name; at one rank all are copies."""

    def itself(to: int) -> None:
        nccl.group_start()
        made.send(at, 100, kind, 0, stream)
        made.recv(to, 100, kind, 0, stream)
        nccl.group_end()

    return {
        "sum": lambda to: made.all_reduce(at, to, 100, kind, SUM, stream),
        "average": lambda to: made.all_reduce(at, to, 100, kind, AVG, stream),
        "reduce_scatter": lambda to: made.reduce_scatter(at, to, 100, kind, SUM, stream),
        "all_gather": lambda to: made.all_gather(at, to, 100, kind, stream),
        "broadcast": lambda to: made.broadcast(at, to, 100, kind, 0, stream),
        "send and recv": itself,
    }
