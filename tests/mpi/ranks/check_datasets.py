import itertools
import pickle
from pathlib import Path

import chainer
import numpy as np
from chainer import datasets
from rank_tools import need_ranks, raises

import nbmn
from nbmn.datasets import create_empty_dataset, scatter_index


def shards(comm, dataset, **options):
    """Scatter from every root; return all ranks' examples, in rank order."""
    by_root = []
    for root in range(comm.size):
        given = dataset if comm.rank == root else None
        mine = nbmn.scatter_dataset(given, comm, root=root, **options)
        by_root.append(comm.allgather_obj([mine[i] for i in range(len(mine))]))
    return by_root


def joined(parts):
    return list(itertools.chain.from_iterable(parts))


def check_equal_lengths(comm):
    for total in [0, 1, 2, 5, 6, 7, 12]:
        for everyone in shards(comm, list(range(total))):
            assert {len(part) for part in everyone} == {-(-total // comm.size)}
            assert set().union(*everyone) == set(range(total))


def check_every_example_once(comm):
    for total in [0, 1, 2, 5, 6, 7, 12]:
        for everyone in shards(comm, list(range(total)), force_equal_length=False):
            assert joined(everyone) == list(range(total))
            assert max(map(len, everyone)) - min(map(len, everyone)) <= 1


def check_shuffle(comm):
    for everyone in shards(comm, np.arange(9), shuffle=True, seed=3, force_equal_length=False):
        np.testing.assert_array_equal(joined(everyone), np.random.RandomState(3).permutation(9))
    everyone = shards(comm, np.arange(50), shuffle=True, force_equal_length=False)[0]
    assert sorted(joined(everyone)) == list(range(50))


def check_kinds_of_datasets(comm):
    x, t = np.arange(14).reshape(7, 2), np.arange(7)
    pairs = datasets.TupleDataset(x, list(t))
    kinds = [
        (x, x),
        (tuple(t), t),
        (pairs, [(x[i], t[i]) for i in range(7)]),
        (
            datasets.SubDataset(pairs, 1, 6, np.arange(7)[::-1]),
            [(x[i], t[i]) for i in [5, 4, 3, 2, 1]],
        ),
        (datasets.TransformDataset(x, lambda row: row.sum()), x.sum(axis=1)),
        (datasets.ConcatenatedDataset(x[:2], x[2:]), x),
        (datasets.DictDataset(x=x, t=t), [{"x": x[i], "t": t[i]} for i in range(7)]),
        (Computed(7), [i * i for i in range(7)]),
    ]
    for dataset, right in kinds:
        for everyone in shards(comm, dataset, force_equal_length=False):
            got = joined(everyone)
            assert len(got) == len(right)
            for a, b in zip(got, right, strict=True):
                if isinstance(a, dict):
                    assert a.keys() == b.keys()
                    a, b = list(a.values()), list(b.values())
                if isinstance(a, (tuple, list)):
                    for ai, bi in zip(a, b, strict=True):
                        np.testing.assert_array_equal(ai, bi)
                else:
                    np.testing.assert_array_equal(a, b)


class Computed(chainer.dataset.DatasetMixin):
    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def get_example(self, i):
        return i * i


def check_only_the_shard_moves(comm):
    need_ranks(comm, 2)
    dataset = datasets.TupleDataset(np.zeros((300, 100)), np.zeros(300))
    whole = len(pickle.dumps(dataset))
    mine = nbmn.scatter_dataset(dataset if comm.rank == 0 else None, comm)
    assert len(pickle.dumps(mine)) < whole / comm.size * 1.1 + 2000


def check_bytes_that_each_rank_sends_and_receives(comm):
    need_ranks(comm, 2)
    rows = np.random.RandomState(0).randn(300, 1000)
    ledger = comm._link.ledger
    before = ledger.traffic
    mine = nbmn.scatter_dataset(rows if comm.rank == 0 else None, comm, shuffle=True, seed=1)
    moved = ledger.traffic - before
    shard = rows.nbytes / comm.size
    expected = shard * (comm.size - 1) if comm.rank == 0 else shard
    assert expected <= moved < expected * 1.01 + 5000
    order = np.random.RandomState(1).permutation(300)
    begin = 300 * comm.rank // comm.size
    right = rows[order[begin : begin + -(-300 // comm.size)]]
    np.testing.assert_array_equal([mine[i] for i in range(len(mine))], right)


class Environment(chainer.dataset.DatasetMixin):
    """Reads from an open file, as datasets on LMDB or HDF5 do."""

    def __init__(self):
        self.file = Path(__file__).open("rb")  # noqa: SIM115

    def __len__(self):
        return 12

    def get_example(self, i):
        self.file.seek(i)
        return self.file.read(1)


def check_open_files_are_read_where_they_are(comm):
    with raises(TypeError, "rank 0", "pickle", "scatter_index") as _:
        # In a world of one rank nothing is sent.
        nbmn.scatter_dataset(Environment() if comm.rank == 0 else None, comm)
        need_ranks(comm, 2)
    dataset = Environment()
    begin, end = scatter_index(len(dataset), comm, force_equal_length=False)
    mine = [dataset[i] for i in range(begin, end)]
    assert b"".join(joined(comm.allgather_obj(mine))) == Path(__file__).read_bytes()[:12]


def check_same_parts_as_chainermn(comm):
    """Its scatter is ``SubDataset(dataset, begin, end, RandomState(seed).permutation(n))``."""
    for total, seed in itertools.product([1, 7, 10], [0, 11]):
        order = np.random.RandomState(seed).permutation(total)
        mine = nbmn.scatter_dataset(range(total), comm, shuffle=True, seed=seed)
        begin = total * comm.rank // comm.size
        right = datasets.SubDataset(range(total), begin, begin + -(-total // comm.size), order)
        assert list(mine) == list(right)
        assert scatter_index(total, comm) == (begin, begin + -(-total // comm.size))


def check_short_messages(comm):
    everyone = shards(comm, np.arange(100), max_buf_len=13, force_equal_length=False)[0]
    assert joined(everyone) == list(range(100))


class Unpicklable:
    def __reduce__(self):
        raise RuntimeError("I stay here")


class Explodes:
    """Pickles, and cannot be read again."""

    def __reduce__(self):
        return int, ("no number",)


def check_errors_are_the_same_on_all(comm):
    with raises(ValueError, "rank 0", "None"):
        nbmn.scatter_dataset(None, comm)
    with raises(TypeError, "rank 0", "len"):
        nbmn.scatter_dataset(5 if comm.rank == 0 else [], comm)
    with raises(ValueError, f"root {comm.size}"):
        nbmn.scatter_dataset([1], comm, root=comm.size)
    need_ranks(comm, 2)
    # The last rank's part is at fault, after the others have theirs.
    bad = [1] * comm.size + [Unpicklable()] * comm.size
    with raises(
        TypeError,
        f"rank {comm.size - 1}" if comm.size == 2 else "rank",
        "I stay here",
        "scatter_index",
    ):
        nbmn.scatter_dataset(bad if comm.rank == 0 else None, comm)
    with raises(ValueError, "no number"):
        nbmn.scatter_dataset([Explodes()] * comm.size if comm.rank == 0 else None, comm)
    assert nbmn.scatter_dataset([1] * comm.size, comm)[0] == 1


def check_scatter_index(comm):
    ranges = comm.allgather_obj(scatter_index(10, comm, force_equal_length=False))
    assert [i for b, e in ranges for i in range(b, e)] == list(range(10))
    with raises(ValueError, "-1"):
        scatter_index(-1 if comm.rank == 0 else 4, comm)
    for wrong in (4.0, None):
        with raises(TypeError, "whole number", "rank 0"):
            scatter_index(wrong if comm.rank == 0 else 4, comm)


def check_empty_dataset(comm):
    assert create_empty_dataset(range(3)) == [(), (), ()]
