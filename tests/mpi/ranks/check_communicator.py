import copy
import os
import pickle
import warnings

import numpy as np
from rank_tools import need_ranks, raises

import nbmn
from nbmn.communicators import MismatchError, create_communicator, world


def check_properties(comm):
    assert comm.intra_size == comm.size  # the tests run on one host
    assert comm.intra_rank == comm.rank
    assert (comm.inter_rank, comm.inter_size) == (0, 1)
    assert comm.mpi_comm.Get_size() == comm.size


def check_allreduce_sums_every_dtype(comm):
    for dtype in ["float16", "float32", "float64", "int8", "uint16", "int32", "int64", "complex64"]:
        for shape in [(), (0,), (1,), (3, 5), (7, 1, 3)]:
            inputs = [
                (np.arange(np.prod(shape)).reshape(shape) + r).astype(dtype)
                for r in range(comm.size)
            ]
            mine = inputs[comm.rank].copy()
            total = comm.allreduce(mine)
            assert total.dtype == dtype
            assert total.shape == shape
            np.testing.assert_array_equal(total, sum(inputs[1:], inputs[0]))
            np.testing.assert_array_equal(mine, inputs[comm.rank])


def check_allreduce_takes_any_layout(comm):
    base = np.arange(24, dtype=np.float32).reshape(4, 6)
    for view in [base.T, base[::2, ::-3], np.asfortranarray(base), base.astype(">f4")]:
        np.testing.assert_array_equal(comm.allreduce(view), view * np.float32(comm.size))


def check_a_tuple_of_nothing(comm):
    assert comm.allreduce(()) == ()
    assert comm.bcast(()) == ()
    assert comm.allgather(()) == ((),) * comm.size


def check_float16_sum_is_rounded_once(comm):
    # In float16, 2048 + 1 is 2048 again; summed wider, three such ranks differ.
    inputs = [np.float16(2048), np.float16(1), np.float16(1)][: comm.size]
    expected = np.float16(sum(float(x) for x in inputs))
    assert comm.allreduce(np.array(inputs[comm.rank]))[()] == expected


def check_allreduce_disagreement_is_an_error_on_all(comm):
    need_ranks(comm, 2)
    with raises(MismatchError, "(2,)", "(3,)"):
        comm.allreduce(np.zeros(2 if comm.rank == 0 else 3))
    with raises(MismatchError, "float32", "float64"):
        comm.allreduce(np.zeros(2, np.float32 if comm.rank == 0 else np.float64))
    with raises(TypeError, f"rank {comm.size - 1}", "list"):
        comm.allreduce([1.0] if comm.rank == comm.size - 1 else np.zeros(1))
    with raises(TypeError, "rank 1", "bool"):
        comm.allreduce(np.zeros(2, bool) if comm.rank == 1 else np.zeros(2))
    assert comm.allreduce(np.ones(2))[0] == comm.size


def check_bcast(comm):
    for root in range(comm.size):
        for value in [
            np.array(2.5),
            np.zeros((0, 3), np.int8),
            np.arange(12, dtype=np.float16).reshape(3, 4)[:, ::2],
            np.array([True, False]),
            np.array(["2020-01-01"], "M8[D]"),
        ]:
            got = comm.bcast(value if comm.rank == root else None, root)
            assert got.dtype == value.dtype
            assert got.shape == value.shape
            np.testing.assert_array_equal(got, value)


def check_bcast_error_at_the_root_is_an_error_on_all(comm):
    with raises(TypeError, "rank 0", "str"):
        comm.bcast("text" if comm.rank == 0 else np.zeros(1))
    with raises(TypeError, "Python objects"):
        comm.bcast(np.array([None]))


def check_objects(comm):
    for root in range(comm.size):
        sent = {"rank": root, "data": np.arange(1000), "f": lambda x: x + 1}
        got = comm.bcast_obj(sent if comm.rank == root else None, root=root)
        assert got["rank"] == root
        assert got["f"](1) == 2
        gathered = comm.gather_obj("x" * comm.rank, root=root)
        assert gathered == (["x" * r for r in range(comm.size)] if comm.rank == root else None)
    assert comm.allgather_obj(comm.rank**2) == [r**2 for r in range(comm.size)]
    assert comm.allreduce_obj([comm.rank]) == list(range(comm.size))
    # In pieces much shorter than the object.
    long = comm.bcast_obj(bytes(1000) if comm.rank == 0 else None, max_buf_len=7)
    assert long == bytes(1000)


def check_object_that_cannot_be_pickled_is_an_error_on_all(comm):
    last = comm.size - 1
    bad = (i for i in range(3)) if comm.rank == last else 1
    with raises(TypeError, f"rank {last}", "generator"):
        comm.bcast_obj(bad, root=last)
    with raises(TypeError, f"rank {last}", "generator"):
        comm.gather_obj(bad)
    with raises(TypeError, f"rank {last}", "generator"):
        comm.allgather_obj(bad)
    assert comm.allgather_obj(1) == [1] * comm.size


def check_a_root_that_does_not_exist_breaks_nothing(comm):
    for root in [comm.size, -1]:
        for call in [
            lambda root=root: comm.bcast(np.ones(1), root),
            lambda root=root: comm.bcast_obj(1, root=root),
            lambda root=root: comm.gather_obj(1, root=root),
        ]:
            with raises(ValueError, f"root {root} is not among"):
                call()
            assert comm.broken is None
    assert comm.allgather_obj(1) == [1] * comm.size


def check_point_to_point(comm):
    need_ranks(comm, 2)
    if comm.rank == 0:
        comm.send_obj({"a": 1}, dest=1, tag=3)
        assert comm.recv_obj(source=1) == [2]
    elif comm.rank == 1:
        assert comm.recv_obj(source=0, tag=3) == {"a": 1}
        comm.send_obj([2], dest=0)


def check_split(comm):
    part = comm.split(comm.rank % 2, -comm.rank)
    mates = sorted((r for r in range(comm.size) if r % 2 == comm.rank % 2), reverse=True)
    assert part.size == len(mates)
    assert part.allgather_obj(comm.rank) == mates
    last = comm.size - 1
    for color in ["a", -1, 2**40]:  # the others would wait in native code for ever
        with raises((TypeError, ValueError), f"split: on rank {last}"):
            comm.split(color if comm.rank == last else 0, 0)
    lone = comm.split(0 if comm.rank == 0 else None, 0)
    assert (lone is None) == (comm.rank != 0)


def check_several_communicators(comm):
    others = [nbmn.create_communicator("naive") for _ in range(3)]
    for number, other in enumerate(others):
        assert other.allreduce(np.array([number + 1]))[0] == comm.size * (number + 1)
    halves = nbmn.create_communicator(mpi_comm=comm.mpi_comm.Split(comm.rank // 2, 0))
    assert halves.size == min(2, comm.size - comm.rank // 2 * 2)
    assert halves.allreduce(np.array([1]))[0] == halves.size


def check_communicators_nobody_holds_are_freed(comm):
    # MPICH has about 2,000 of them.
    for _ in range(2500):
        other = nbmn.create_communicator()
    assert other.allgather_obj(1) == [1] * comm.size


def check_names_that_do_not_work(comm):
    with raises(ValueError, "pure_nccl", "NCCL"):
        nbmn.create_communicator("pure_nccl")
    with raises(ValueError, "unknown", "nonsense"):
        nbmn.create_communicator("nonsense")
    with raises(TypeError, "no_such_option"):
        nbmn.create_communicator(no_such_option=1)
    need_ranks(comm, 2)
    with raises(MismatchError, "flat", "naive"):
        nbmn.create_communicator("flat" if comm.rank == 0 else "naive")


def check_belongs_to_its_process(comm):
    assert copy.deepcopy({"comm": comm})["comm"] is comm
    with raises(TypeError, "process"):
        pickle.dumps(comm)
    assert f"rank {comm.rank} of {comm.size}" in repr(comm)


def check_a_fork_takes_no_part(comm):
    """It has the memory in which the ranks meet: the rank waits for it as the others do not."""
    if comm.rank == 0:
        reader, writer = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of threads that are not in the fork
            pid = os.fork()
        if pid == 0:
            for call in (comm.barrier, lambda: comm.split(0, 0), create_communicator, world):
                try:
                    call()
                    text = "no error"
                except RuntimeError as error:
                    text = str(error)
                os.write(writer, f"{text}\n".encode())
            os._exit(0)
        os.close(writer)
        with open(reader) as told:
            lines = told.read().splitlines()
        os.waitpid(pid, 0)
        assert len(lines) == 4
        assert all("forked" in line for line in lines), lines
    assert comm.allreduce_obj(1) == comm.size
    comm.barrier()
