import chainer
import numpy as np
from rank_tools import need_ranks, raises

from nbmn.communicators import MismatchError


def check_verify_compares_every_call(comm):
    need_ranks(comm, 2)
    comm.set_config("verify", True)
    first = comm.rank == 0
    model = chainer.links.Linear(2, 2)
    cases = [
        (lambda: comm.allreduce(np.ones(3, np.float32)), lambda: comm.bcast(None, root=0)),
        (lambda: comm.barrier(), lambda: comm.bcast_obj(None)),
        (lambda: comm.allreduce(np.ones(3)), lambda: comm.allreduce(np.ones((3, 1)))),
        (lambda: comm.allreduce(np.ones(3)), lambda: comm.allreduce(np.ones(3, np.int64))),
        (lambda: comm.bcast(np.ones(3), root=0), lambda: comm.bcast(np.ones(3), root=1)),
        (lambda: comm.gather(np.ones(3), root=0), lambda: comm.gather(np.ones(3), root=1)),
        (lambda: comm.bcast_data(model), lambda: comm.multi_node_mean_grad(model)),
        (lambda: comm.split(0, 0), lambda: comm.allgather_obj(1)),
    ]
    for one, other in cases:
        with raises(MismatchError, "rank 0: ", f"rank {comm.size - 1}: ", "check_verify.py:"):
            (one if first else other)()
        assert comm.broken is None
        # Right calls go through, and nothing was left of the wrong ones.
        total = comm.allreduce(np.full(4, comm.rank))
        np.testing.assert_array_equal(total, sum(range(comm.size)))
    with raises(
        MismatchError,
        "rank 0: allreduce(x=float32[3])  at ",
        "rank 1: bcast(x=int64[2, 1], root=1)  at ",
    ):
        comm.allreduce(np.ones(3, np.float32)) if first else comm.bcast(
            np.ones((2, 1), np.int64), 1
        )
    comm.set_config("verify", False)


def check_debug_mode_verifies(comm):
    need_ranks(comm, 2)
    with chainer.using_config("debug", True):
        with raises(MismatchError, "rank 0: barrier()", "rank 1: any_rank(flag=True)"):
            comm.barrier() if comm.rank == 0 else comm.any_rank(True)
        comm.barrier()


def check_what_may_differ_does(comm):
    comm.set_config("verify", True)
    gathered = comm.allgather(np.full(comm.rank, comm.rank))
    assert [len(array) for array in gathered] == list(range(comm.size))
    assert comm.allgather_obj([comm.rank] * comm.rank)[-1] == [comm.size - 1] * (comm.size - 1)
    got = comm.bcast(np.arange(3) if comm.rank == 0 else None)
    assert got.tolist() == [0, 1, 2]
    assert comm.split(comm.rank, comm.rank).size == 1
    comm.set_config("verify", False)
