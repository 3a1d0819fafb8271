"""Names, hosts and settings of communicators."""

import os

import chainer
import numpy as np
from mpi4py import MPI
from rank_tools import need_ranks, raises

import nbmn
from nbmn.communicators import BrokenCommunicatorError, MismatchError, world
from nbmn.communicators.communicator import compose
from nbmn.communicators.composition import NAMES


def on_hosts(hosts, name="auto"):
    """Make a communicator as if the ranks were on these hosts."""
    link, _ = world().open_link(None, None)
    made = compose(world(), link, hosts[: link.size], name)
    made.timeout = 15.0
    return made


def gradients(comm, seed=0):
    """Return a model with gradients of its own on every rank, and their means."""
    model = chainer.Sequential(chainer.links.Linear(3, 5), chainer.links.Linear(5, 2))
    by_rank = []
    for rank in range(comm.size):
        rng = np.random.default_rng(100 * seed + rank)
        by_rank.append([rng.normal(size=p.shape).astype(p.dtype) for p in model.params()])
    for param, grad in zip(model.params(), by_rank[comm.rank], strict=True):
        param.grad = grad.copy()
    return model, [np.mean(grads, axis=0) for grads in zip(*by_rank, strict=True)]


def assert_averages(comm):
    for seed in range(3):
        model, means = gradients(comm, seed)
        comm.multi_node_mean_grad(model)
        for param, mean in zip(model.params(), means, strict=True):
            np.testing.assert_allclose(param.grad, mean, rtol=1e-5, atol=1e-6)


def check_every_name(comm):
    for name in NAMES:
        if name == "pure_nccl":
            continue
        other = nbmn.create_communicator(name)
        assert other.name == name
        assert repr(other).startswith(f"<Communicator {name!r}")
        model, means = gradients(other, 7)
        own = [param.grad.copy() for param in model.params()]
        other.allreduce_grad(model)
        for param, mean, mine in zip(model.params(), means, own, strict=True):
            right = mine if name == "dummy" else mean
            np.testing.assert_allclose(param.grad, right, rtol=1e-5, atol=1e-6)
        assert other.allreduce(np.array([other.rank + 1.0]))[0] == sum(range(other.size + 1))
        next(model.params()).array[...] = other.rank
        other.broadcast_data(model)
        assert (next(model.params()).array == 0).all()


def check_names_that_cannot_work_say_why(comm):
    with raises(ValueError, "pure_nccl", "NCCL", "'auto'"):
        nbmn.create_communicator("pure_nccl")
    with raises(ValueError, "unknown", "nonsense", "two_dimensional"):
        nbmn.create_communicator("nonsense")
    with raises(ValueError, "unknown", "None"):
        nbmn.create_communicator(None)
    with raises(TypeError, "no_such_option"):
        nbmn.create_communicator(no_such_option=1)
    need_ranks(comm, 2)
    for name in ["single_node", "shared_memory"]:
        with raises(ValueError, name, "one host", "2"):
            on_hosts(["x", "y", "y", "x"], name)
    with raises(MismatchError, "flat", "naive"):
        nbmn.create_communicator("flat" if comm.rank == 0 else "naive")
    with raises(ValueError, "rank 1", "NCCL"):
        nbmn.create_communicator("pure_nccl" if comm.rank == 1 else "flat")
    with raises(MismatchError, "float16"):
        nbmn.create_communicator(allreduce_grad_dtype="float16" if comm.rank == 0 else None)


def check_auto_fits_the_hosts(comm):
    def kind(hosts):
        return on_hosts(hosts)._parts.kind

    if comm.size == 1:
        assert kind(["x"]) == "flat"
        return
    assert kind(["x"] * comm.size) == "shared_memory"
    assert kind(list(range(comm.size))) == "flat"
    if comm.size >= 3:
        assert kind(["x", "x", *"yyyy"]) == "two_dimensional"


def check_several_hosts(comm):
    """Ranks of this machine, told that they are on several."""
    for hosts in ["xxyy", "xyxy", "xyyx", "xxxy", "xyyy", "xyzx", "xyzw", "xxxx"]:
        for name in ["hierarchical", "two_dimensional", "auto"]:
            other = on_hosts(list(hosts), name)
            order = list(dict.fromkeys(hosts[: other.size]))
            here = [r for r in range(other.size) if hosts[r] == hosts[other.rank]]
            assert other.intra_rank == here.index(other.rank)
            assert other.intra_size == len(here)
            assert other.inter_rank == order.index(hosts[other.rank])
            assert other.inter_size == len(order)
            assert_averages(other)
            for size in [0, 1, 2, 3, 7, 1000]:
                for dtype in ["float32", "float16", "int64", "complex128"]:
                    mine = (np.arange(size) % 50 + other.rank).astype(dtype)
                    right = np.arange(size) % 50 * other.size + sum(range(other.size))
                    np.testing.assert_array_equal(other.allreduce(mine), right.astype(dtype))
            part = other.split(0, -other.rank)
            assert part.inter_size == other.inter_size
            assert part.intra_size == other.intra_size
            assert_averages(part)


def check_breaking_a_part_breaks_the_whole(comm):
    need_ranks(comm, 2)
    # Sums of whole hosts, by the first rank of each: the others wait for the second host.
    other = on_hosts(["x", "y", "x", "y"], "hierarchical")
    other.timeout = 0.3
    other.barrier()
    if comm.rank == 0:
        with raises(TimeoutError):
            other._parts.arrays.sum(np.ones(4))
        assert other.broken is not None
        with raises(BrokenCommunicatorError):
            other.barrier()
    assert world().renew() is True
    other.timeout = 15.0
    assert_averages(other)


def check_configuration(comm):
    one, two = nbmn.create_communicator(), nbmn.create_communicator(batched_copy=False)
    assert one.get_config("batched_copy") is True
    assert two.get_config("batched_copy") is two.batched_copy is False
    assert one.get_config("allreduce_grad_dtype") is None
    one.set_config("allreduce_grad_dtype", np.float16)
    assert one.get_config("allreduce_grad_dtype") == one.allreduce_grad_dtype == np.float16
    assert two.get_config()["allreduce_grad_dtype"] is None
    one.set_config("batched_copy", False)
    one.set_config("batched_copy")
    assert one.get_config("batched_copy") is True
    one.timeout = 12.0

    assert not one.within_config_scope
    with one.config_scope():
        assert one.within_config_scope
        one.flavour = "mint"
        one.allreduce_grad_dtype = np.float32
    one.temper = "mild"
    assert one.get_config("flavour") == one.flavour == "mint"
    assert "temper" not in one.get_config()

    part = one.split(0, comm.rank)
    assert part.get_config("allreduce_grad_dtype") == np.float32
    assert part.get_config("flavour") == part.flavour == "mint"
    assert part.timeout == 12.0
    part.set_config("allreduce_grad_dtype", None)
    part.set_config("flavour", "plain")
    assert one.get_config("allreduce_grad_dtype") == np.float32
    assert one.get_config("flavour") == "mint"

    with raises(ValueError, "no_such", "batched_copy"):
        one.set_config("no_such", 1)
    with raises(KeyError, "no_such"):
        one.get_config("no_such")
    for wrong in ["int32", "no dtype", "complex64"]:
        with raises(ValueError, "allreduce_grad_dtype", wrong):
            one.set_config("allreduce_grad_dtype", wrong)
    with raises(ValueError, "int8"):
        nbmn.create_communicator(allreduce_grad_dtype="int8")


def check_bfloat16_is_for_gpus(comm):
    with raises(ValueError, "bfloat16"):  # that it needs ml_dtypes, or that this is no GPU
        other = nbmn.create_communicator(allreduce_grad_dtype="bfloat16")
        other.multi_node_mean_grad(gradients(comm)[0])
    comm.barrier()


def check_grad_dtype(comm):
    """Contributions are rounded, their sum is not: 1 + 2**-12 is 1 in float16."""
    for hosts, name in [("xxxx", n) for n in NAMES if n not in ("pure_nccl", "dummy")] + [
        ("xyxy", "hierarchical"),
        ("xyxy", "two_dimensional"),
        ("xyzw", "flat"),
    ]:
        other = on_hosts(list(hosts), name)
        for wire, given, rounded in [
            (None, 1 + 2.0**-12, 1 + 2.0**-12),
            (np.float32, 1 + 2.0**-12, 1 + 2.0**-12),
            (np.float64, 1 + 2.0**-12, 1 + 2.0**-12),
            (np.float16, 1 + 2.0**-12, 1.0),
            (np.float16, 1 + 2.0**-10, 1 + 2.0**-10),
        ]:
            other.set_config("allreduce_grad_dtype", wire)
            for size in [3, 300_000]:
                model = chainer.Link()
                with model.init_scope():
                    model.w = chainer.Parameter(np.zeros(size, np.float32))
                model.w.grad = np.full(size, given * 2**other.rank, np.float32)
                other.multi_node_mean_grad(model)
                right = np.float32(rounded * (2**other.size - 1) / other.size)
                assert model.w.grad.dtype == np.float32
                np.testing.assert_allclose(model.w.grad, right, rtol=1e-7)


def check_different_grad_dtypes(comm):
    need_ranks(comm, 2)
    comm = comm.split(0, comm.rank)
    comm.set_config("allreduce_grad_dtype", np.float16 if comm.rank == 1 else None)
    with raises(MismatchError, "allreduce_grad_dtype"):
        comm.multi_node_mean_grad(gradients(comm)[0])
    comm.set_config("allreduce_grad_dtype", np.float16)
    comm.multi_node_mean_grad(gradients(comm)[0])


def check_finalize(comm):
    for name in ["flat", "auto", "hierarchical"]:
        other = on_hosts(list("xyxy"), name)
        assert_averages(other)
        other.finalize()
        other.finalize()
        assert "finalized" in other.broken
        with raises(BrokenCommunicatorError, "finalized", "create it again"):
            other.barrier()
        with raises(BrokenCommunicatorError):
            other.multi_node_mean_grad(gradients(other)[0])
    world().renew()
    with raises(BrokenCommunicatorError):
        other.barrier()
    comm.barrier()


def check_finalized_communicators_are_freed(comm):
    for _ in range(2500):  # MPICH has about 2,000
        nbmn.create_communicator("naive").finalize()
    comm.barrier()


def check_parts_of_communicators_nobody_holds_are_freed(comm):
    for _ in range(400):  # of three each
        other = on_hosts(list("xyxy"), "two_dimensional")
    assert other.allgather_obj(comm.rank) == list(range(comm.size))
    for _ in range(1200):
        part = comm.split(comm.rank % 2, 0)
    assert part.allgather_obj(comm.rank) == list(range(comm.rank % 2, comm.size, 2))


def check_any_source(comm):
    need_ranks(comm, 2)
    if comm.rank == 0:
        got = [comm.recv_obj(MPI.ANY_SOURCE) for _ in range(2 * comm.size - 2)]
        assert sorted(got) == sorted([*range(1, comm.size), *range(1, comm.size)])
    else:
        comm.send_obj(comm.rank, 0, tag=comm.rank)
        comm.send_obj(comm.rank, 0, tag=comm.rank + 1)


def check_short_objects_are_sent_without_waiting(comm):
    """All send before any receives, as scripts do that rely on MPI's own buffers."""
    need_ranks(comm, 2)
    left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    comm.send_obj(comm.rank, right)
    assert comm.recv_obj(left) == left


def check_more_than_two_gib(comm):
    """Slow and large: NBMN_TEST_LARGE=1."""
    if not os.environ.get("NBMN_TEST_LARGE") or comm.size > 2:
        need_ranks(comm, 10**9)
    comm.timeout = None
    size = 2**31 + 2**20
    sent = np.arange(size // 8, dtype=np.int64) if comm.rank == 0 else None
    got = comm.bcast_obj({"x": sent} if comm.rank == 0 else None)["x"]
    assert got.nbytes == size
    assert got[-1] == size // 8 - 1
    del got
    got = comm.bcast(sent)
    assert got[-1] == size // 8 - 1
    del got, sent
    everyone = comm.allgather_obj(np.full(2**31 // comm.size + 5, comm.rank, np.uint8))
    assert [part[-1] for part in everyone] == list(range(comm.size))
    del everyone
    total = comm.allreduce(np.ones(2**31 + 9, np.int8))
    assert total[-1] == comm.size
    comm.timeout = 15.0
