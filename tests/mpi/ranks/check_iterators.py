import io
import itertools

import chainer
import numpy as np
from chainer.iterators import MultithreadIterator, SerialIterator
from rank_tools import need_ranks, raises

import nbmn
from nbmn.communicators import MismatchError, RemoteRankError
from nbmn.iterators import create_multi_node_iterator, create_synchronized_iterator


def shared(comm, dataset, batch_size, master=0, **options):
    mine = SerialIterator(dataset, batch_size, **options) if comm.rank == master else None
    return create_multi_node_iterator(mine, comm, master)


EXAMPLES = [
    [16777217, 2**62 + 1, -1],  # no float32, no float64 has them
    [np.float64(1) / 3, np.float64(np.nan)],
    [np.array([2**24 + 1, 7]), np.array([], np.int64)],
    [(np.float16(1.5), np.int32(2**30 + 1)), (np.float16(0.1), np.int32(3))],
    [(np.zeros((2, 3), np.uint8), 1, "a"), (np.ones((4, 1), np.uint8), 2, "b")],
    [{"x": np.array([1 + 2j], np.complex64), "name": "ä"}, {"x": None, "name": ""}],
    ["text", b"bytes", None, True, [1, [2]], np.datetime64("2024-01-01")],
    [np.arange(400_000, dtype=np.int64), np.full(400_000, 0.1)],
]


def same(a, b):
    assert type(a) is type(b), (a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, (np.ndarray, np.generic)):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    return a == b


def check_every_kind_of_batch_arrives_as_it_is(comm):
    for master, examples in itertools.product(range(comm.size), EXAMPLES):
        iterator = shared(comm, examples, len(examples), master, shuffle=False)
        assert same(iterator.next(), examples)
        assert same(next(iterator), examples)


def check_progress_and_end(comm):
    for master, repeat, shuffle in itertools.product(
        range(comm.size), [False, True], [False, True]
    ):
        iterator = shared(comm, range(10), 4, master, repeat=repeat, shuffle=shuffle)
        right = SerialIterator(range(10), 4, repeat=repeat, shuffle=False)
        names = ("epoch", "epoch_detail", "is_new_epoch", "current_position")
        names += ("previous_epoch_detail", "batch_size", "repeat")
        seen = []
        for _ in range(7):
            for name in names:
                assert getattr(iterator, name) == getattr(right, name), name
            stopped = False
            try:
                batch = iterator.next()
            except StopIteration:
                stopped = True
            try:
                expected = right.next()
            except StopIteration:
                assert stopped
                break
            assert len(batch) == len(expected)
            assert comm.allgather_obj(batch) == [batch] * comm.size
            assert shuffle or batch == expected
            seen += batch
        assert stopped is not repeat
        assert sorted(seen[:10]) == list(range(10))
        iterator.reset()
        assert iterator.epoch == 0
        assert len(iterator.next()) == 4


def check_error_on_the_master_is_one_on_all(comm):
    class Fails(chainer.dataset.DatasetMixin):
        def __len__(self):
            return 4

        def get_example(self, i):
            if i == 2:
                raise ValueError("no example 2")
            return (lambda: i) if i == 3 else i

    iterator = shared(comm, Fails(), 1, shuffle=False)
    assert iterator.next() == [0]
    assert iterator.next() == [1]
    with raises(ValueError, "rank 0", "no example 2"):
        iterator.next()
    with raises(TypeError, "rank 0", "no iterator"):
        create_multi_node_iterator(None, comm)
    with raises(ValueError, f"root {comm.size}"):
        create_multi_node_iterator(None, comm, comm.size)
    need_ranks(comm, 2)
    with raises(MismatchError, "from rank 1"):
        create_multi_node_iterator(SerialIterator([1], 1), comm, min(comm.rank, 1))


def check_iterator_that_cannot_tell_its_progress_is_an_error_on_all(comm):
    """Chainer's divide by the number of examples."""
    with raises(RuntimeError if comm.rank else (RuntimeError, ZeroDivisionError), "division"):
        shared(comm, [], 1)
    assert shared(comm, [1], 1).next() == [1]


def check_ranks_that_reset_and_ranks_that_go_on_are_told(comm):
    need_ranks(comm, 2)
    iterator = shared(comm, range(4), 1)
    with raises(MismatchError, "rank 0: reset", "rank 1: next"):
        iterator.reset() if comm.rank == 0 else iterator.next()
    iterator.reset()
    assert len(iterator.next()) == 1


class Explodes:
    """Pickles, and cannot be read again."""

    def __reduce__(self):
        return int, ("no number",)


def check_batch_that_cannot_be_read_is_an_error_on_all(comm):
    need_ranks(comm, 2)
    with raises((ValueError, RemoteRankError), "no number"):
        shared(comm, [Explodes()], 1).next()
    assert shared(comm, [1], 1).next() == [1]


def check_snapshot_of_any_rank_resumes(comm):
    for master in range(comm.size):
        iterator = shared(comm, range(10), 3, master, shuffle=True)
        for _ in range(5):
            iterator.next()
        file = io.BytesIO()
        chainer.serializers.save_npz(file, iterator)
        right = [iterator.next() for _ in range(2)]  # in the same epoch
        files = comm.allgather_obj(file.getvalue())
        for source in range(comm.size):
            resumed = shared(comm, range(10), 3, master, shuffle=True)
            chainer.serializers.load_npz(io.BytesIO(files[source]), resumed)
            assert (resumed.epoch, resumed.current_position) == (1, 5)
            assert resumed.epoch_detail == 1.5
            assert [resumed.next()] == right[:1]


def check_updater_with_shared_batches(comm):
    model = chainer.links.Classifier(chainer.links.Linear(4, 3))
    comm.bcast_data(model)
    data = chainer.datasets.TupleDataset(np.eye(4, dtype="f"), np.array([0, 1, 2, 0], "i"))
    optimizer = chainer.optimizers.SGD(0.1).setup(model)
    iterator = shared(comm, data, 2)
    updater = chainer.training.updaters.StandardUpdater(iterator, optimizer)
    trainer = chainer.training.Trainer(updater, (2, "epoch"), out=".")
    trainer.run()
    everyone = comm.allgather(model.predictor.W.array)
    assert updater.iteration == 4
    assert all((theirs == everyone[0]).all() for theirs in everyone)


def check_synchronized_order(comm):
    for make in (SerialIterator, MultithreadIterator):
        np.random.seed(comm.rank)
        iterator = create_synchronized_iterator(make(list(range(10)), 5), comm)
        batches = [iterator.next() for _ in range(8)]
        iterator.finalize()
        assert comm.allgather_obj(batches) == [batches] * comm.size
        epochs = [batches[i] + batches[i + 1] for i in range(0, 8, 2)]
        assert all(sorted(epoch) == list(range(10)) for epoch in epochs)
        assert len(set(map(tuple, epochs))) == 4
    assert iterator.epoch == 4
    another = create_synchronized_iterator(SerialIterator(list(range(10)), 10), comm)
    assert another.next() != epochs[0]


def check_synchronized_reset_begins_in_a_new_order(comm):
    """As loops do that reset an iterator which does not repeat after each epoch."""
    np.random.seed(comm.rank)
    examples = SerialIterator(list(range(10)), 10, repeat=False, shuffle=True)
    iterator = create_synchronized_iterator(examples, comm)
    epochs = []
    for _ in range(4):
        epochs += list(iterator)
        iterator.reset()
    assert comm.allgather_obj(epochs) == [epochs] * comm.size
    assert len(set(map(tuple, epochs))) == 4


def check_synchronized_without_shuffling_keeps_the_order(comm):
    iterator = create_synchronized_iterator(SerialIterator(range(4), 2, shuffle=False), comm)
    assert [iterator.next() for _ in range(3)] == [[0, 1], [2, 3], [0, 1]]


class Turned(chainer.iterators.OrderSampler):
    def __init__(self, by):
        self.by = by

    def __call__(self, current_order, current_position):
        return np.roll(current_order, self.by)


def check_sampler_of_the_user_is_rank_0s(comm):
    iterator = SerialIterator(range(4), 4, order_sampler=Turned(comm.rank + 1))
    iterator = create_synchronized_iterator(iterator, comm)
    assert [iterator.next() for _ in range(2)] == [[3, 0, 1, 2], [2, 3, 0, 1]]


def check_synchronized_resume_has_the_order_of_an_uninterrupted_run(comm):
    def make():
        return create_synchronized_iterator(SerialIterator(list(range(9)), 4), comm)

    iterator = make()
    for _ in range(3):
        iterator.next()
    file = io.BytesIO()
    chainer.serializers.save_npz(file, iterator)
    right = [iterator.next() for _ in range(9)]
    resumed = make()
    file.seek(0)
    chainer.serializers.load_npz(file, resumed)
    assert [resumed.next() for _ in range(9)] == right


def check_iterators_that_do_not_go_together(comm):
    with raises(ValueError, "rank 0", "order_sampler", "create_multi_node_iterator"):
        create_synchronized_iterator(iter([1]), comm)
    need_ranks(comm, 2)
    with raises(MismatchError, "of 3 examples", "of 4 examples"):
        create_synchronized_iterator(SerialIterator(range(3 + comm.rank % 2), 1), comm)
    with raises(ValueError, "rank 1", "order_sampler"):
        create_synchronized_iterator(SerialIterator([1], 1) if comm.rank != 1 else None, comm)
    assert nbmn.iterators.create_synchronized_iterator is create_synchronized_iterator
