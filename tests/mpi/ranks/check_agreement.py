"""What cannot work with the arguments of one rank is the same error on all, and nobody waits."""

import chainer
import numpy as np
from rank_tools import need_ranks, raises

from nbmn.communicators import CommunicatorError, MismatchError


class Unpicklable:
    def __reduce__(self):
        raise RuntimeError("will not be pickled")


class Outlandish(Exception):
    """No other rank can raise it."""


def calls(comm):
    """Yield name, good call, bad call, kind of error and words of its message."""
    n, one = comm.size, np.ones(2, np.float32)
    several = [one] * n
    bad = Unpicklable()

    def pair(name, good, *wrong, **options):
        method = getattr(comm, name)
        for args, kind, words in wrong:
            yield (
                name,
                lambda: method(*good, **options),
                lambda args=args: method(*args),
                kind,
                words,
            )

    yield from pair(
        "allreduce",
        (one,),
        (([1.0],), TypeError, "list of float"),
        ((None,), TypeError, "NoneType"),
        ((3.0,), TypeError, "float"),
        ((chainer.Variable(one),), TypeError, "Variable: pass its .array"),
        ((np.ma.masked_array(one, [True, False]),), TypeError, "mask"),
        ((np.array(["2020-01-01"], "M8[D]"),), TypeError, "datetime64[D] cannot be summed"),
        ((np.array(["a"]),), TypeError, "cannot be summed"),
        ((np.array([None]),), TypeError, "Python objects"),
        ((np.array([True]),), TypeError, "bool"),
        ((np.ones(3, np.float32),), MismatchError, "(3,)"),
        ((np.ones((2, 1), np.float32),), MismatchError, "(2, 1)"),
        ((np.ones(2),), MismatchError, "float64"),
        (((one, one),), MismatchError, "[float32, float32]"),
        (((one,),), MismatchError, "[float32]"),
    )
    yield from pair(
        "gather",
        (one,),
        (("text",), TypeError, "str"),
        ((np.array([{}]),), TypeError, "Python objects"),
        ((one, n), ValueError, f"root {n}"),
        ((one, -1), ValueError, "root -1"),
        ((one, None), TypeError, "root"),
        ((np.ones(2),), MismatchError, "float64"),
        ((one.astype(">f4"),), MismatchError, ">f4"),
        (((one, one),), MismatchError, "float32, float32"),
    )
    yield from pair(
        "allgather",
        (one,),
        ((None,), TypeError, "NoneType"),
        ((np.ones(2, np.int8),), MismatchError, "int8"),
    )
    yield from pair(
        "alltoall",
        (several,),
        (([*several, one],), ValueError, f"not {n + 1}"),
        (((),), ValueError, "not 0"),
        ((None,), TypeError, "NoneType"),
        ((np.array(1.0),), TypeError, "0-d"),
        ((np.ones((n + 1, 2)),), ValueError, f"not {n + 1}"),
        (([*several[:-1], "x"],), TypeError, "str"),
        (([np.ones(1)] * n,), MismatchError, "float64"),
    )
    yield from pair(
        "bcast", (one,), ((one, n), ValueError, f"root {n}"), ((one, "0"), TypeError, "'0'")
    )
    yield from pair(
        "scatter",
        (several,),
        ((several, n), ValueError, f"root {n}"),
        ((several, 0.5), TypeError, "0.5"),
    )
    yield from pair(
        "bcast_obj",
        (1,),
        ((1, 2**20, n), ValueError, f"root {n}"),
        ((1, 0), ValueError, "max_buf_len"),
        ((1, None), TypeError, ""),
    )
    yield from pair(
        "gather_obj", (1,), ((bad,), TypeError, "not be pickled"), ((1, n), ValueError, f"root {n}")
    )
    yield from pair("allgather_obj", (1,), ((bad,), TypeError, "not be pickled"))
    yield from pair("allreduce_obj", (1,), ((bad,), TypeError, "not be pickled"))
    yield from pair(
        "split",
        (0, 0),
        ((-1, 0), ValueError, "color"),
        (("a", 0), TypeError, "color"),
        ((0, None), TypeError, "key"),
        ((2**31, 0), ValueError, "32 bits"),
    )
    yield from pair("bcast_data", (model(),), ((None,), TypeError, ""))
    yield from pair(
        "multi_node_mean_grad",
        (model(),),
        ((None,), TypeError, ""),
        ((model(3),), MismatchError, "/W"),
    )
    yield from pair("agree", ("x", 1), (("x", 1, Outlandish("odd")), CommunicatorError, "odd"))


def model(size=2):
    link = chainer.links.Linear(2, size)
    link.cleargrads()
    return link


def check_an_error_of_one_rank_is_everyones(comm):
    need_ranks(comm, 2)
    for name, good, wrong, kind, words in calls(comm):
        for victim in range(comm.size):
            told = None
            try:
                (wrong if comm.rank == victim else good)()
            except Exception as error:  # noqa: BLE001 - compared below
                told = error
            assert told is not None, f"{name}: no error though rank {victim} is wrong ({words})"
            is_model = name in ("bcast_data", "multi_node_mean_grad") and kind is TypeError
            expected = (TypeError, CommunicatorError) if is_model else kind
            assert isinstance(told, expected), (name, words, repr(told))
            assert words in str(told), (name, words, repr(told))
            everyone = comm.allgather_obj((type(told).__name__, str(told)))
            assert everyone == [everyone[0]] * comm.size, (name, everyone)
            assert comm.broken is None


def check_an_error_at_the_root_is_everyones(comm):
    one = np.ones(1)
    for root in range(comm.size):
        at_root = comm.rank == root
        for wrong, kind, words in [
            ([one] * (comm.size + 1), ValueError, "not"),
            (np.ones((comm.size + 1, 2)), ValueError, "not"),
            ([one] * (comm.size - 1) + [None], TypeError, "NoneType"),
            ([[one, np.ones(1, np.int8)]] * comm.size + [one], ValueError, "not"),
            (None, TypeError, "NoneType"),
        ]:
            with raises(kind, words, f"rank {root}", "scatter"):
                comm.scatter(wrong if at_root else None, root)
        with raises(TypeError, "list of str", f"rank {root}", "bcast"):
            comm.bcast(["text"] if at_root else None, root)
        with raises(TypeError, "not be pickled", f"rank {root}", "bcast_obj"):
            comm.bcast_obj(Unpicklable() if at_root else None, root=root)
        assert comm.bcast_obj("whole" if at_root else None, root=root) == "whole"


def check_different_roots(comm):
    need_ranks(comm, 2)
    one = np.ones(1)
    for call in [
        lambda: comm.bcast(one, comm.rank),
        lambda: comm.gather(one, comm.rank),
        lambda: comm.scatter([one] * comm.size, comm.rank),
        lambda: comm.bcast_obj(1, root=comm.rank),
        lambda: comm.gather_obj(1, root=comm.rank),
    ]:
        with raises(MismatchError, "root 0", "root 1"):
            call()
    assert comm.allgather_obj(1) == [1] * comm.size


def check_different_operations(comm):
    need_ranks(comm, 2)
    one = np.ones(1)
    named = {
        "allreduce": lambda: comm.allreduce(one),
        "bcast": lambda: comm.bcast(one),
        "gather": lambda: comm.gather(one),
        "allgather": lambda: comm.allgather(one),
        "alltoall": lambda: comm.alltoall([one] * comm.size),
        "scatter": lambda: comm.scatter([one] * comm.size),
        "bcast_obj": lambda: comm.bcast_obj(1),
        "gather_obj": lambda: comm.gather_obj(1),
        "allgather_obj": lambda: comm.allgather_obj(1),
        "allreduce_obj": lambda: comm.allreduce_obj(1),
        "bcast_data": lambda: comm.bcast_data(model()),
        "multi_node_mean_grad": lambda: comm.multi_node_mean_grad(model()),
        "split": lambda: comm.split(0, 0),
        "barrier": lambda: comm.barrier(),
    }
    names = list(named)
    for first, second in zip(names, names[1:] + names[:1], strict=True):
        mine = named[first if comm.rank == 0 else second]
        with raises(MismatchError, f"rank 0: {first}", f"rank 1: {second}"):
            mine()
        assert comm.broken is None
    np.testing.assert_array_equal(comm.allreduce(one), comm.size)


def check_messages_that_cannot_be_sent(comm):
    need_ranks(comm, 2)
    one = np.ones(1)
    for send, recv in [
        (lambda: comm.send(None, 1), lambda: comm.recv(0)),
        (lambda: comm.send(chainer.Variable(one), 1), lambda: comm.recv(0)),
        (lambda: comm.send_obj(Unpicklable(), 1), lambda: comm.recv_obj(0)),
        (lambda: comm.send_obj(Unpicklable(), 1), lambda: comm.recv(0)),
    ]:
        if comm.rank == 0:
            with raises(TypeError):
                send()
        elif comm.rank == 1:
            with raises(TypeError, "rank 0"):
                recv()
    for sent in [one, np.ones(10**6), (one, one)]:
        if comm.rank == 0:
            comm.send(sent, 1)
        elif comm.rank == 1:
            with raises(MismatchError, "receive it by recv"):
                comm.recv_obj(0)
    for sent in ["text", bytes(3000), np.ones(10**6)]:
        if comm.rank == 0:
            comm.send_obj(sent, 1)
        elif comm.rank == 1:
            with raises(MismatchError, "receive it by recv_obj"):
                comm.recv(0)
    for wrong in [comm.size, -5, comm.rank]:
        with raises(ValueError, f"rank {comm.rank}" if wrong == comm.rank else "no rank"):
            comm.send(one, wrong)
        with raises(ValueError):
            comm.recv(wrong)
    with raises(ValueError, "tags"):
        comm.send_obj(1, (comm.rank + 1) % comm.size, tag=40000)
    # Nothing of all this is left over.
    if comm.rank == 0:
        comm.send(one, 1)
    elif comm.rank == 1:
        np.testing.assert_array_equal(comm.recv(0), one)
    comm.barrier()
