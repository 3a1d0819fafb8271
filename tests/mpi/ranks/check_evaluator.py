import copy

import chainer
import numpy as np
from chainer.training.extensions import Evaluator
from rank_tools import need_ranks, raises

import nbmn
from nbmn.communicators import CommunicatorError, world

X = np.random.RandomState(0).randn(17, 4).astype(np.float32)
T = np.random.RandomState(1).randint(0, 3, 17).astype(np.int32)


def build():
    rng = np.random.RandomState(3)
    normal = chainer.initializers.Normal(0.5, rng=rng)
    return chainer.links.Classifier(chainer.links.Linear(4, 3, initialW=normal))


def evaluator(cls, part, batch, model):
    data = chainer.datasets.TupleDataset(X[part], T[part])
    iterator = chainer.iterators.SerialIterator(data, batch, repeat=False, shuffle=False)
    return cls(iterator, model)


def shares(comm):
    """Very unequal parts of the whole, one of them empty with 3 ranks."""
    return {
        1: [slice(0, 17)],
        2: [slice(0, 4), slice(4, 17)],
        3: [slice(0, 4), slice(4, 4), slice(4, 17)],
    }[comm.size]


def check_equals_the_evaluator_on_the_whole(comm):
    alone = evaluator(Evaluator, slice(0, 17), 17, build())()
    for cls in [Evaluator, Overridden]:
        local = evaluator(cls, shares(comm)[comm.rank], 3 if cls is Evaluator else 20, build())
        result = nbmn.create_multi_node_evaluator(local, comm)()
        assert result.keys() == alone.keys() == {"main/loss", "main/accuracy"}
        for key, value in alone.items():
            np.testing.assert_allclose(result[key], value, rtol=1e-5)
        everyone = comm.allgather_obj(result)
        assert all(theirs == everyone[0] for theirs in everyone)  # to the last bit


class Overridden(Evaluator):
    def evaluate(self):
        return super().evaluate()


class OfACopy(Evaluator):
    """Leaves the iterator as it is, and remembers."""

    calls = 0

    def evaluate(self):
        self.calls += 1
        examples = [x for batch in copy.copy(self.get_iterator("main")) for x, _ in batch]
        return {"mean": np.mean(examples), "calls": self.calls}


class OfTheDataset(Evaluator):
    def evaluate(self):
        dataset = self.get_iterator("main").dataset
        return {"mean": np.mean([dataset[i][0] for i in range(len(dataset))])}


def check_every_way_to_the_examples(comm):
    for cls in [OfACopy, OfTheDataset]:
        local = evaluator(cls, shares(comm)[comm.rank], 3, build())
        multi_node = nbmn.create_multi_node_evaluator(local, comm)
        for call in (1, 2):
            result = multi_node()
            np.testing.assert_allclose(result["mean"], X.mean(dtype=np.float64), atol=1e-6)
            assert result.get("calls", call) == call


def check_can_be_called_again_and_leaves_the_original(comm):
    local = evaluator(Evaluator, shares(comm)[comm.rank], 3, build())
    local.name = "test"
    multi_node = nbmn.create_multi_node_evaluator(local, comm)
    assert isinstance(multi_node, Evaluator)
    assert multi_node.name == "test"
    assert multi_node.trigger == local.trigger
    first = multi_node()
    assert set(first) == {"test/main/loss", "test/main/accuracy"}
    assert multi_node() == first
    assert type(local) is Evaluator


def check_keys_that_some_ranks_lack(comm):
    class Odd(chainer.Chain):
        def forward(self, x, t):
            chainer.report({"common": comm.rank}, self)
            if comm.rank == comm.size - 1:
                chainer.report({"rare": 7.0, "array": np.zeros(2)}, self)

    parts = [slice(0, 2), slice(2, 5), slice(5, 9)]
    result = nbmn.create_multi_node_evaluator(
        evaluator(Evaluator, parts[comm.rank], 9, Odd()), comm
    )()
    counts = [2, 3, 4][: comm.size]
    assert set(result) == {"main/common", "main/rare"}
    assert result["main/rare"] == 7.0
    np.testing.assert_allclose(result["main/common"], np.average(range(comm.size), weights=counts))


def check_float16_means(comm):
    class Half(chainer.Chain):
        def forward(self, x, t):
            chainer.report({"v": np.float16(2.5)}, self)

    many = chainer.datasets.TupleDataset(np.zeros((6000, 1), np.float32), np.zeros(6000))
    iterator = chainer.iterators.SerialIterator(many, 1, repeat=False, shuffle=False)
    result = nbmn.create_multi_node_evaluator(Evaluator(iterator, Half()), comm)()
    assert result == {"main/v": 2.5}


def check_failure_on_one_rank_is_an_error_on_all(comm):
    class Fails(chainer.Chain):
        def forward(self, x, t):
            if comm.rank == comm.size - 1:
                raise KeyError("broken sample")

    multi_node = nbmn.create_multi_node_evaluator(
        evaluator(Evaluator, slice(0, 3), 2, Fails()), comm
    )
    own = comm.rank == comm.size - 1
    with raises(KeyError if own else RuntimeError, "broken sample", *(() if own else ["KeyError"])):
        multi_node()
    need_ranks(comm, 2)
    assert comm.allgather_obj(1) == [1] * comm.size


def check_failure_while_others_communicate_keeps_its_own_error(comm):
    need_ranks(comm, 2)

    class Talks(chainer.Chain):
        def forward(self, x, t):
            if comm.rank == 0:
                raise KeyError("broken sample")
            comm.allreduce(np.ones(1))

    model = Talks()
    multi_node = nbmn.create_multi_node_evaluator(evaluator(Evaluator, slice(0, 3), 3, model), comm)
    before, comm.timeout = comm.timeout, 1.0
    try:
        with raises(KeyError if comm.rank == 0 else CommunicatorError):
            multi_node()
    finally:
        comm.timeout = before
    world().renew()
