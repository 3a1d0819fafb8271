"""What ranks tell each other before NCCL starts, and what they do where it cannot."""

import gc
import os
import traceback
import warnings
import weakref
from dataclasses import replace

import numpy as np
from host_runtime import DeviceArray, on_device
from nccl_tools import assert_means, driver, model_on_device, on_gpus, params, standin
from rank_tools import interrupt_when_waiting, raises

import nbmn
from nbmn.communicators import (
    CollectiveTimeoutError,
    MismatchError,
    RemoteRankError,
    cuda_aware,
    models,
    world,
)
from nbmn.communicators.carriers import device_of
from nbmn.communicators.device_backend import DeviceBackend
from nbmn.communicators.mpi_carrier import MpiCarrier
from nbmn.communicators.waiting import wait


def check_two_ranks_on_one_gpu_are_staged(comm):
    for name in ("pure_nccl", "auto"):
        nccl = on_gpus(name, uuid="the only one")
        runtime = nccl._parts.gpu.runtime
        inits = standin().inits()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for seed, dtype in enumerate(["float32", "float64", "float16", "float32"]):
                model, means = model_on_device(nccl, dtype, seed)
                nccl.multi_node_mean_grad(model)
                assert_means(model, means, 1e-3 if dtype == "float16" else 1e-6)
                assert all(isinstance(param.grad, DeviceArray) for param in params(model))
        notes = [str(w.message) for w in caught if "one GPU" in str(w.message)]
        assert len(notes) == (nccl.rank == 0), notes
        if notes:
            assert "ranks 0, 1" in notes[0]
            assert "host memory" in notes[0]
        assert standin().inits() == inits
        # One copy each way, however many gradients there are.
        assert runtime.uploads == 4
        assert runtime.downloads <= 5


def check_staged_garbage_between_gradients_is_not_said(comm):
    nccl = on_gpus(uuid="the only one")
    nccl._parts.gpu.runtime.garbage = 0x7F  # as a number, nearly the largest
    for dtype in ("float32", "float64"):
        model, means = model_on_device(nccl, dtype)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.filterwarnings("ignore", ".*one GPU")
            nccl.multi_node_mean_grad(model)
        assert_means(model, means)


def check_staged_memory_is_kept_until_the_device_is_through(comm):
    nccl = on_gpus(uuid="the only one")
    model, means = model_on_device(nccl, shapes=((3,),))
    nccl.multi_node_mean_grad(model)
    staged = nccl._parts.gradients._staged
    small = weakref.ref(pinned(staged))
    model, means = model_on_device(nccl, shapes=((300,),))
    staged.prepare(models._request(nccl._link, *model_terms(model)))
    assert pinned(staged).size >= 300
    assert small() is not None
    nccl.multi_node_mean_grad(model)
    assert_means(model, means)
    assert small() is None


def check_staged_memory_outlives_a_call_that_gives_up(comm):
    nccl, model, memory, runtime = staged_once()
    runtime.standin.kernel(runtime.compute_stream(), 1000)
    nccl.timeout = 0.1
    failed(nccl, model)
    nccl.finalize()
    assert memory() is not None
    runtime.await_(runtime.record(runtime.compute_stream()))
    wait(lambda: memory() is None, 5.0)


def check_staged_memory_outlives_an_averaging_that_is_called_off(comm):
    """No rank waits for its GPU when one of them cannot prepare, and all may then close."""
    outlived(lambda nccl: nccl.finalize())
    outlived(lambda nccl: None)


def staged_once():
    """Return a communicator that has averaged a model, a weak reference to its memory, and more."""
    nccl = on_gpus(uuid="the only one")
    model, _ = model_on_device(nccl, shapes=((3,),))
    nccl.multi_node_mean_grad(model)
    memory = weakref.ref(pinned(nccl._parts.gradients._staged).base)
    return nccl, model, memory, nccl._parts.gpu.runtime


def outlived(finish):
    nccl, model, memory, runtime = staged_once()
    runtime.standin.kernel(runtime.compute_stream(), 300)
    if nccl.rank == nccl.size - 1:
        fail_after_the_copy(runtime)
    refused(nccl, model)
    event = runtime.record(runtime.compute_stream())
    finish(nccl)
    del nccl
    gc.collect()
    # The device is not through yet, or has been just now.
    assert memory() is not None or runtime.reached(event)
    runtime.await_(event)
    wait(lambda: memory() is None, 5.0)


def check_staged_copies_to_the_same_memory_keep_their_order(comm):
    """On another stream than an averaging that was called off they wait for its copies."""
    nccl = on_gpus(uuid="the only one")
    model, means = model_on_device(nccl, shapes=((3,),))
    nccl.multi_node_mean_grad(model)
    runtime, staged = nccl._parts.gpu.runtime, nccl._parts.gradients._staged
    slow = runtime.compute_stream()
    runtime.standin.kernel(slow, 100)
    model, means = model_on_device(nccl, shapes=((3,),))
    staged.prepare(models._request(nccl._link, *model_terms(model)))
    copied = runtime.record(slow)
    runtime._compute = runtime.stream()
    model, means = model_on_device(nccl, seed=1, shapes=((3,),))
    nccl.multi_node_mean_grad(model)
    assert runtime.reached(copied)
    assert_means(model, means)


def pinned(staged):
    (memory,) = staged._memory._held.memory.values()
    return memory


def fail_after_the_copy(runtime):
    download = runtime.download

    def fails(array, host):
        download(array, host)
        raise MemoryError("no more")

    runtime.download = fails


def refused(nccl, model):
    text = ""
    try:
        nccl.multi_node_mean_grad(model)
    except RemoteRankError as error:
        text = str(error)
        for told in (error, error.__cause__):
            if told is not None:
                traceback.clear_frames(told.__traceback__)
    assert "no more" in text


def failed(nccl, model):
    try:
        nccl.multi_node_mean_grad(model)
    except CollectiveTimeoutError as error:
        traceback.clear_frames(error.__traceback__)
        return
    raise AssertionError("it did not give up")


def model_terms(model):
    gradients = models.collect(model, False)
    return gradients, models.Terms(False), gradients.table


def check_rank_without_gradients_is_on_the_device_of_its_values(comm):
    runtime = on_gpus()._parts.gpu.runtime
    nccl = on_gpus()
    model, _ = model_on_device(nccl, missing=lambda *_: True)
    gradients, terms, table = model_terms(model)
    request = models._request(nccl._link, gradients, terms, table)
    assert all(array is None for array in request.arrays)
    runtime.device_of = lambda array: 7 if array is model.p0.array else 0
    assert device_of(request, runtime) == 7


def check_staged_wire_dtypes(comm):
    nccl = on_gpus(uuid="the only one")
    for wire, tolerance in [("float16", 2e-3), ("bfloat16", 2e-2), (None, 1e-6)]:
        nccl.set_config("allreduce_grad_dtype", wire)
        model, means = model_on_device(nccl, "float32", 5)
        nccl.multi_node_mean_grad(model)
        assert_means(model, means, tolerance)


def check_staged_gradients_that_some_ranks_have_not(comm):
    nccl = on_gpus(uuid="the only one")
    model, means = model_on_device(nccl, missing=lambda rank, number: rank == number)
    nccl.multi_node_mean_grad(model)
    assert_means(model, means)


def check_other_communicators_are_staged(comm):
    for name in ("flat", "naive", "non_cuda_aware", "shared_memory", "single_node", "hierarchical"):
        other = on_gpus(name)
        inits = standin().inits()
        for seed in range(3):
            model, means = model_on_device(other, "float32", seed)
            other.multi_node_mean_grad(model)
            assert_means(model, means)
            assert all(isinstance(param.grad, DeviceArray) for param in params(model))
        assert standin().inits() == inits


def check_rank_without_gpu_is_named(comm):
    trouble = "CuPy finds no GPU" if comm.rank == 1 else None
    nccl = on_gpus(trouble=trouble)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model, means = model_on_device(nccl)
        nccl.multi_node_mean_grad(model)
    assert_means(model, means)
    notes = [str(w.message) for w in caught if "rank 1: CuPy finds no GPU" in str(w.message)]
    assert len(notes) == (comm.rank == 0)


def check_versions_must_be_the_same(comm):
    last = comm.size - 1
    nccl = on_gpus(version=f"CuPy {'13.4' if comm.rank == last else '14.2'}")
    model, _ = model_on_device(nccl)
    rest = "rank 0 has" if comm.size == 2 else "ranks 0, 1 have"
    with raises(MismatchError, "device runtime", f"rank {last} has CuPy 13.4", f"{rest} CuPy 14.2"):
        nccl.multi_node_mean_grad(model)
    nccl.barrier()


def check_versions_of_nccl_must_be_the_same(comm):
    class Older:
        def __getattr__(self, name):
            return getattr(driver(), name)

        def version(self):
            return 21805

    last = comm.size - 1
    nccl = on_gpus(nccl=Older() if comm.rank == last else None)
    model, _ = model_on_device(nccl)
    with raises(MismatchError, "the NCCL", f"rank {last} has 2.18.5", "have 2.27.7"[5:]):
        nccl.multi_node_mean_grad(model)


def check_without_a_gpu_it_is_an_error_at_once(comm):
    with raises(ValueError, "pure_nccl", "NCCL", "no GPU", "'auto'"):
        nbmn.create_communicator("pure_nccl")


def check_the_drivers_own_calls(comm):
    """Every collective of the driver, on every dtype; 2 to 4 ranks."""
    api, runtime = driver(), on_gpus()._parts.gpu.runtime
    name = comm.bcast_obj(api.unique_id() if comm.rank == 0 else None)
    assert len(name) == 128
    made = api.init(comm.size, name, comm.rank)
    while made.state() == 7:
        pass
    stream = runtime.stream()
    n, rank = comm.size, comm.rank
    kinds = {"int8": 0, "uint8": 1, "int32": 2, "uint32": 3, "int64": 4, "uint64": 5}
    kinds |= {"float16": 6, "float32": 7, "float64": 8}
    for dtype, kind in kinds.items():
        given = on_device(np.arange(6 * n) + rank, dtype)
        base = np.arange(6 * n)

        def done(stream=stream):
            event = runtime.record(stream)
            while not runtime.reached(event):
                pass

        def fresh(size, dtype=dtype):
            return on_device(np.zeros(size), dtype)

        at, total = runtime.pointer, fresh(6 * n)
        made.all_reduce(at(given), at(total), 6 * n, kind, 0, stream)
        done()
        np.testing.assert_array_equal(total, n * base + sum(range(n)))
        shard = fresh(6)
        made.reduce_scatter(at(given), at(shard), 6, kind, 0, stream)
        done()
        np.testing.assert_array_equal(shard, (n * base + sum(range(n)))[6 * rank : 6 * rank + 6])
        made.all_gather(at(shard), at(total), 6, kind, stream)
        done()
        np.testing.assert_array_equal(total, n * base + sum(range(n)))
        made.broadcast(at(given), at(total), 6 * n, kind, n - 1, stream)
        done()
        np.testing.assert_array_equal(total, base + n - 1)
        api.group_start()
        made.send(at(given), 6 * n, kind, (rank + 1) % n, stream)
        made.recv(at(total), 6 * n, kind, (rank - 1) % n, stream)
        api.group_end()
        done()
        np.testing.assert_array_equal(total, base + (rank - 1) % n)
    assert made.state() == 0
    comm.barrier()
    made.destroy()


def check_driver_says_what_is_wrong(comm):
    api = driver()
    assert "in progress" in api.describe(7)
    assert "remote process" in api.describe(6)
    assert api.version() == 22707
    with raises(RuntimeError, "NCCL", "invalid argument"):
        api.init(2, api.unique_id(), 5)


def through_mpi(refusal=None):
    """Return a communicator whose MPI takes memory of devices, or does not."""
    made = on_gpus("flat")
    runtime = made._parts.gpu.runtime
    carrier = MpiCarrier(made._link, made._parts.gpu, lambda: refusal)
    backend = DeviceBackend(made._link, made._parts.gradients._host, runtime, carrier)
    made._parts = replace(made._parts, gradients=backend, arrays=backend)
    return made, runtime


def check_mpi_that_takes_memory_of_devices(comm):
    direct, runtime = through_mpi()
    for seed, dtype in enumerate(["float32", "float64", "float16"]):
        model, means = model_on_device(direct, dtype, seed)
        direct.multi_node_mean_grad(model)
        assert_means(model, means, 1e-3 if dtype == "float16" else 1e-6)
    for wire, tolerance in [("float16", 2e-3), ("bfloat16", 2e-2)]:
        direct.set_config("allreduce_grad_dtype", wire)
        model, means = model_on_device(direct, "float32", 7)
        direct.multi_node_mean_grad(model)
        assert_means(model, means, tolerance)
    total = direct.allreduce(on_device(np.arange(5) + direct.rank, "int16"))
    expected = direct.size * np.arange(5) + sum(range(direct.size))
    np.testing.assert_array_equal(np.asarray(total), expected)
    assert (runtime.downloads, runtime.uploads) == (0, 0)


def check_mpi_that_does_not_is_said_once(comm):
    staged, runtime = through_mpi("MPI given memory of GPUs died of signal 11")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for seed in range(3):
            model, means = model_on_device(staged, "float32", seed)
            staged.multi_node_mean_grad(model)
            assert_means(model, means)
    assert len([w for w in caught if "died of signal 11" in str(w.message)]) == (comm.rank == 0)
    assert runtime.uploads == 3


def check_interrupted_mpi_on_devices_is_renewed(comm):
    direct, _ = through_mpi()
    model, means = model_on_device(direct)
    direct.multi_node_mean_grad(model)
    if comm.rank == 0:
        watcher = interrupt_when_waiting("allreduce")
        with raises(KeyboardInterrupt):
            direct.allreduce(on_device(np.ones(3)))
        watcher.join()
    assert world().renew() is True
    model, means = model_on_device(direct, seed=3)
    direct.multi_node_mean_grad(model)
    assert_means(model, means)


def check_a_proof_runs_from_within_a_job(comm):
    """With NumPy's memory, which any MPI takes; two ranks more, that belong to another job."""
    text = """
import numpy
from mpi4py import MPI
from nbmn.communicators.cuda_aware import say_proved
from nbmn.communicators.cuda_aware_proof import prove
assert MPI.COMM_WORLD.Get_size() == 2
if prove(MPI.COMM_WORLD, numpy) and MPI.COMM_WORLD.Get_rank() == 0:
    say_proved()
"""
    if comm.rank == 0:
        launcher = cuda_aware._launcher()
        command = cuda_aware.trial(launcher, "-c", text)
        environment = cuda_aware.outside_of_jobs(os.environ)
        assert cuda_aware.prove(command, environment) == cuda_aware.Finding(None)
        assert "ended with status" in cuda_aware.refusal()  # there is no GPU to prove it with
    comm.timeout = 60.0
    comm.barrier()
    comm.timeout = 15.0
