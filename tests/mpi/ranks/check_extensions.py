import warnings
from types import SimpleNamespace

import chainer
import chainer.links as L
import numpy as np
from rank_tools import need_ranks, raises

from nbmn.extensions import (
    AllreducePersistent,
    GenericMultiNodeEvaluator,
    MultiNodeEarlyStoppingTrigger,
    ObservationAggregator,
)


def at(iteration, epoch=0.0, **observation):
    """A trainer, as far as triggers and observers look at one."""
    updater = SimpleNamespace(
        iteration=iteration, epoch=int(epoch), epoch_detail=epoch, previous_epoch_detail=0.0
    )
    return SimpleNamespace(updater=updater, observation=observation, is_before_training=False)


def check_aggregated_values_of_all_kinds(comm):
    kinds = {
        "float": (float, float),
        "int": (int, float),
        "float32": (np.float32, np.float32),
        "float16": (np.float16, np.float16),
        "0-d": (lambda v: np.array(v, np.float32), np.float32),
        "array": (lambda v: np.array([v, 2 * v], np.float32), np.float32),
        "variable": (lambda v: chainer.Variable(np.array(v, np.float32)), np.float32),
    }
    expected = np.mean(np.arange(comm.size) + 1.0)
    for name, (make, dtype) in kinds.items():
        trainer = at(1, x=make(comm.rank + 1))
        ObservationAggregator(comm, "x", "mean")(trainer)
        result = trainer.observation["mean"]
        assert isinstance(result, chainer.Variable) == (name == "variable")
        array = np.asarray(getattr(result, "array", result))
        assert array.dtype == dtype, name
        wanted = np.array([expected, 2 * expected] if name == "array" else expected)
        np.testing.assert_array_equal(array, wanted.astype(dtype))
        assert comm.allgather_obj(array.tobytes()) == [array.tobytes()] * comm.size
        aggregator = ObservationAggregator(comm, "x")  # in place of what was observed
        aggregator(trainer)
        assert trainer.observation["x"] is not None


def check_aggregated_float16_does_not_overflow(comm):
    aggregator = ObservationAggregator(comm, "x", comm_trigger=(4, "iteration"))
    for iteration in range(1, 5):
        trainer = at(iteration, x=np.float16(60000))
        aggregator(trainer)
    assert trainer.observation["x"] == np.float16(60000)


def check_aggregation_interval(comm):
    """Ranks observe at other iterations; one of them never does."""
    aggregator = ObservationAggregator(comm, "x", "mean", comm_trigger=(3, "iteration"))
    for iteration in range(1, 10):
        mine = {"x": 10.0 * comm.rank + iteration}
        if comm.size > 1 and (comm.rank == comm.size - 1 or iteration % (comm.rank + 1)):
            mine = {}
        trainer = at(iteration, **mine)
        aggregator(trainer)
        if iteration % 3:
            assert "mean" not in trainer.observation
            continue
        seen = [
            10.0 * rank + i
            for rank in range(max(1, comm.size - 1))
            for i in range(iteration - 2, iteration + 1)
            if i % (rank + 1) == 0
        ]
        assert trainer.observation["mean"] == np.mean(seen)


def check_nobody_observed(comm):
    trainer = at(1)
    ObservationAggregator(comm, "x")(trainer)
    assert trainer.observation == {}


def check_aggregating_function(comm):
    def worst(histories):
        assert comm.rank == 0
        assert [len(history) for history in histories] == [2] * comm.size
        return max(float(value.array) for history in histories for value in history)

    aggregator = ObservationAggregator(
        comm, "x", "worst", comm_trigger=(2, "iteration"), aggregator=worst
    )
    for iteration in (1, 2):
        trainer = at(iteration, x=chainer.Variable(np.array(comm.rank * iteration, np.float32)))
        aggregator(trainer)
    assert trainer.observation["worst"] == 2.0 * (comm.size - 1)
    failing = ObservationAggregator(comm, "x", aggregator=lambda histories: {}["no such"])
    with raises((KeyError, RuntimeError), "no such"):
        failing(trainer)
    assert comm.allgather_obj(1) == [1] * comm.size


def check_history_survives_a_save(comm):
    first = ObservationAggregator(comm, "x", comm_trigger=(3, "iteration"))
    second = ObservationAggregator(comm, "x", comm_trigger=(3, "iteration"))
    for iteration in (1, 2):
        first(at(iteration, x=np.float32(comm.rank + iteration / 3)))
    saved = chainer.serializers.DictionarySerializer()
    first.serialize(saved)
    second.serialize(chainer.serializers.NpzDeserializer(saved.target))
    results = []
    for aggregator in (first, second):
        trainer = at(3, x=np.float32(7))
        aggregator(trainer)
        results.append(trainer.observation["x"])
    assert results[0] == results[1]
    assert results[0].dtype == np.float32


def stops_at(comm, trigger, losses, epoch=lambda i: float(i)):
    """Run until the trigger fires; return the iteration at which it did, on each rank."""
    for iteration in range(1, 100):
        observed = {} if losses is None else {"main/loss": losses(iteration)}
        if trigger(at(iteration, epoch(iteration), **observed)):
            return comm.allgather_obj(iteration)
    return None


def check_early_stopping(comm):
    """No rank improves by itself after 5, the mean does not after 3; only rank 0 is better at 5."""

    def losses(iteration):
        return {0: [9, 8, 7, 8, 6, 9], 1: [9, 8, 7, 8, 9, 9]}[min(comm.rank, 1)][
            min(iteration, 6) - 1
        ]

    for kind in (float, np.float32, lambda v: chainer.Variable(np.array(v, np.float32))):
        trigger = MultiNodeEarlyStoppingTrigger(comm, patience=2, check_trigger=(1, "iteration"))
        assert trigger.get_training_length() == (100, "epoch")
        stopped = stops_at(comm, trigger, lambda i, kind=kind: kind(losses(i)))
        assert stopped == [5 if comm.size > 1 else 7] * comm.size


def check_early_stopping_with_epochs_of_unequal_length(comm):
    """Shards differ, so epochs end at other iterations; all ranks check and stop together."""
    trigger = MultiNodeEarlyStoppingTrigger(comm, patience=3, check_trigger=(1, "epoch"))
    stopped = stops_at(comm, trigger, lambda i: 1.0, lambda i: i / (2 + comm.rank))
    assert stopped is not None
    assert len(set(stopped)) == 1
    trigger = MultiNodeEarlyStoppingTrigger(comm, max_trigger=(3, "epoch"), patience=1000)
    assert stops_at(comm, trigger, lambda i: 1.0, lambda i: i / (2 + comm.rank)) == [6] * comm.size


def check_early_stopping_where_nobody_observes(comm):
    trigger = MultiNodeEarlyStoppingTrigger(comm, max_trigger=(4, "iteration"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert stops_at(comm, trigger, None) == [4] * comm.size


def check_early_stopping_survives_a_save(comm):
    def make():
        return MultiNodeEarlyStoppingTrigger(comm, patients=2, check_trigger=(2, "iteration"))

    first, second = make(), make()
    values = [5.0, 4.0, 3.0, 9.0, 9.0, 9.0, 1.0, 1.0, 9.0]
    for iteration in range(1, 6):
        assert not first(at(iteration, **{"main/loss": values[iteration - 1]}))
    saved = chainer.serializers.DictionarySerializer()
    first.serialize(saved)
    second.serialize(chainer.serializers.NpzDeserializer(saved.target))
    for iteration in range(6, 10):
        trainer = at(iteration, **{"main/loss": values[iteration - 1]})
        fired = first(trainer), second(trainer)
        assert fired[0] == fired[1] == (iteration == 6)


def check_persistents(comm):
    model = chainer.Chain()
    with model.init_scope():
        model.bn = L.BatchNormalization(3)
    model.add_persistent("half", np.full(2, 60000 + 32 * comm.rank, np.float16))
    model.add_persistent("double", np.array(comm.rank + 2.0**-40))
    model.add_persistent("count", np.array([comm.rank]))
    model.add_persistent("scalar", np.float32(comm.rank))
    model.add_persistent("text", f"rank {comm.rank}")
    model.bn.avg_mean[...] = [comm.rank, 1, -comm.rank]
    model.bn.avg_var[...] = comm.rank
    model.bn.N = 100 + comm.rank
    array = model.bn.avg_mean
    AllreducePersistent(model, comm)()
    mean = (comm.size - 1) / 2
    assert model.bn.avg_mean is array
    np.testing.assert_array_equal(array, np.array([mean, 1, -mean], np.float32))
    np.testing.assert_array_equal(model.bn.avg_var, np.full(3, mean, np.float32))
    half = np.mean(np.float64(60000) + 32 * np.arange(comm.size)).astype(np.float16)
    np.testing.assert_array_equal(model.half, np.full(2, half))
    assert model.half.dtype == np.float16
    assert model.double == mean + 2.0**-40
    assert (model.count[0], model.scalar, model.text, model.bn.N) == (
        comm.rank,
        comm.rank,
        f"rank {comm.rank}",
        100 + comm.rank,
    )


def check_persistents_that_some_ranks_lack(comm):
    model = chainer.Chain()
    with model.init_scope():
        model.bn = L.BatchNormalization(axis=0)  # lazy
    if comm.rank == comm.size - 1:
        model.bn(np.array([[1, 2, 3, 4], [5, 6, 7, 8]], np.float32))
        expected = model.bn.avg_mean.copy()
        comm.bcast(expected, comm.rank)
    else:
        expected = comm.bcast(None, comm.size - 1)
    AllreducePersistent(model, comm)()
    np.testing.assert_array_equal(model.bn.avg_mean, expected)


def check_persistents_that_are_replaced(comm):
    """Some cannot be written to on one rank, or are not there."""
    first = comm.rank == 0
    model = chainer.Link()
    model.add_persistent("fixed", np.broadcast_to(np.float32(comm.rank), (2,)))
    model.add_persistent("single", np.array(2.5) if first else None)
    if not first:
        model.fixed = model.fixed.copy()
    for _ in range(2):
        AllreducePersistent(model, comm)()
        np.testing.assert_array_equal(model.fixed, np.full(2, (comm.size - 1) / 2, "f4"))
        assert model.single == 2.5
        assert isinstance(model.single, np.ndarray)


def check_persistents_of_no_model(comm):
    with raises(Exception, "namedlinks"):
        AllreducePersistent(L.Linear(2, 2) if comm.rank else None, comm)()


def check_persistents_that_do_not_fit(comm):
    need_ranks(comm, 2)
    model = L.BatchNormalization(3 + comm.rank)
    before = model.avg_mean.copy()
    with raises(ValueError, "avg_mean", "(4,)", "rank 1"):
        AllreducePersistent(model, comm)()
    np.testing.assert_array_equal(model.avg_mean, before)
    model = chainer.Chain()
    if comm.rank == 1:
        model.add_persistent("extra", np.zeros(2))
    with raises(ValueError, "/extra", "ranks 0 and 1"):
        AllreducePersistent(model, comm)()


class Counts(GenericMultiNodeEvaluator):
    """Counts labels; the root makes a table of all."""

    def calc_local(self, x, t):
        return self._targets["main"](x), t.tolist()

    def aggregate(self, results):
        return results


def batches(comm, sizes):
    """As many examples as ``sizes`` says for each rank, numbered by rank and place."""
    n = sizes[comm.rank]
    data = chainer.datasets.TupleDataset(
        np.arange(n, dtype=np.float32), np.arange(n, dtype=np.int32) + 100 * comm.rank
    )
    return chainer.iterators.SerialIterator(data, 2, repeat=False, shuffle=False)


def check_generic_evaluator(comm):
    sizes = [5, 0, 3][: comm.size]
    root = comm.size - 1
    seen = []
    evaluator = Counts(
        comm, batches(comm, sizes), lambda x: float(x.sum()), root=root, progress_hook=seen.append
    )
    expected = {
        1: [(1.0, [0, 1]), (5.0, [2, 3]), (4.0, [4])],
        2: [(1.0, [0, 1]), (5.0, [2, 3]), (4.0, [4])],
        3: [(1.0, [0, 1]), (1.0, [200, 201]), (5.0, [2, 3]), (2.0, [202]), (4.0, [4])],
    }[comm.size]
    for _ in range(2):
        result = evaluator(None)
        assert result == (expected if comm.rank == root else None)
    assert len(seen) == (2 * -(-sizes[root] // 2) if comm.rank == root else 0)


def check_generic_evaluator_alone(comm):
    iterator = chainer.iterators.SerialIterator(np.arange(3.0), 2, repeat=False, shuffle=False)
    evaluator = GenericMultiNodeEvaluator(None, iterator, lambda x: x.sum())
    assert evaluator(None) == [1.0, 2.0]


def check_generic_evaluator_fails_on_all(comm):
    last = comm.size - 1

    class FailsHere(Counts):
        def calc_local(self, x, t):
            if comm.rank == last:
                raise LookupError("bad sample")
            return 1

    class FailsAtRoot(Counts):
        def aggregate(self, results):
            raise LookupError("bad result")

    class Silent(Counts):
        def calc_local(self, x, t):
            return None if comm.rank == last else 1

    for kind, text in ((FailsHere, "bad sample"), (FailsAtRoot, "bad result")):
        with raises((LookupError, RuntimeError), text):
            kind(comm, batches(comm, [4] * comm.size), lambda x: 1)(None)
    with raises(TypeError, "calc_local must return"):
        Silent(comm, batches(comm, [4] * comm.size), lambda x: 1)(None)
    with raises(ValueError, "root 7"):
        Counts(comm, batches(comm, [4] * comm.size), None, root=7)
    assert comm.allgather_obj(1) == [1] * comm.size
