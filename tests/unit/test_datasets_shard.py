import numpy as np
import pytest
from chainer import datasets

from nbmn.datasets.scatter import bounds
from nbmn.datasets.shard import take

PICK = np.array([4, 0, 2])


def items(dataset):
    return [dataset[i] for i in range(len(dataset))]


@pytest.mark.parametrize("total", [0, 1, 2, 5, 6, 7, 100])
@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_bounds(total, size):
    equal = bounds(total, size, True)
    assert {end - begin for begin, end in equal} == {-(-total // size)}
    assert set().union(*(range(*part) for part in equal)) == set(range(total))
    parts = bounds(total, size, False)
    assert [i for part in parts for i in range(*part)] == list(range(total))
    lengths = [end - begin for begin, end in parts]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] - lengths[-1] <= 1


def test_take_from_sequences():
    assert take([10, 11, 12, 13, 14], PICK) == [14, 10, 12]
    assert take((10, 11, 12, 13, 14), PICK) == (14, 10, 12)
    assert take(range(5, 10), PICK) == [9, 5, 7]
    np.testing.assert_array_equal(take(np.arange(10).reshape(5, 2), PICK)[0], [8, 9])


def test_take_holds_only_the_part():
    base = np.arange(5)
    part = take(datasets.TupleDataset(base, list("abcde")), PICK)
    assert items(part) == [(4, "e"), (0, "a"), (2, "c")]
    assert len(part._datasets[0]) == 3
    part = take(datasets.SubDataset(base, 0, 5, np.array([1, 2, 3, 4, 0])), PICK)
    np.testing.assert_array_equal(part, [0, 1, 3])
    part = take(datasets.ConcatenatedDataset(base[:2], base[2:]), PICK)
    assert items(part) == [4, 0, 2]


def test_what_a_subclass_computes_is_kept():
    class Doubled(datasets.TupleDataset):
        def __getitem__(self, i):
            return tuple(2 * value for value in super().__getitem__(i))

    class Numbered(datasets.DictDataset):
        def __getitem__(self, i):
            return {"i": i, **super().__getitem__(i)}

    base = np.arange(5)
    assert items(take(Doubled(base, base + 1), PICK)) == [(8, 10), (0, 2), (4, 6)]
    assert items(take(Numbered(x=base), PICK)) == [{"i": i, "x": i} for i in PICK]


def test_transform_is_applied_when_read():
    calls = []

    def transform(x):
        calls.append(x)
        return -x

    part = take(datasets.TransformDataset(np.arange(5), transform), PICK)
    assert calls == []
    assert items(part) == [-4, 0, -2]


def test_unknown_datasets_stay_whole_and_can_be_taken_from_again():
    class Squares:
        def __len__(self):
            return 5

        def __getitem__(self, i):
            return i * i

    part = take(Squares(), PICK)
    assert items(part) == [16, 0, 4]
    assert items(take(part, np.array([2, 2]))) == [4, 4]
