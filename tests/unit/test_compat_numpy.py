"""Chainer on a NumPy that lost names and call forms: the right values, no warnings."""

import numpy as np
import pytest

chainer = pytest.importorskip("chainer")
F = chainer.functions
L = chainer.links

pytestmark = pytest.mark.filterwarnings("error")


def test_as_strided_windows_and_their_gradient():
    x = chainer.Variable(np.arange(4, dtype=np.float32))
    windows = F.as_strided(x, (3, 2), (1, 1), 0)
    np.testing.assert_array_equal(windows.array, [[0, 1], [1, 2], [2, 3]])
    windows.grad = np.array([[1, 2], [3, 4], [5, 6]], np.float32)
    windows.backward()
    np.testing.assert_array_equal(x.grad, [1, 2 + 3, 4 + 5, 6])


def test_as_strided_has_no_gradient_of_integers():
    from chainer.functions.array.as_strided import AsStridedGrad, TensorGeometry

    geometry = TensorGeometry(np.arange(4, dtype=np.int32))
    with pytest.raises(TypeError, match="float"):
        AsStridedGrad(geometry, (2,), (1,), 0).forward((np.ones(2, np.int32),))


@pytest.mark.parametrize(
    ("options", "want"),
    [
        ({"mode": "bilinear"}, [[0, 1, 2], [2, 3, 4], [4, 5, 6]]),
        ({"mode": "nearest", "align_corners": False}, [[0, 0, 2], [0, 0, 2], [4, 4, 6]]),
    ],
)
def test_resize_images(options, want):
    x = chainer.Variable(np.array([[[[0, 2], [4, 6]]]], np.float32))
    y = F.resize_images(x, (3, 3), **options)
    np.testing.assert_allclose(y.array[0, 0], want)
    y.grad = np.ones_like(y.array)
    y.backward()
    assert x.grad.sum() == pytest.approx(9)


@pytest.mark.parametrize("wrap", [np.asarray, chainer.Variable])
def test_categorical_log_prob(wrap):
    p = np.array([[0.2, 0.3, 0.5], [0.7, 0.2, 0.1]], np.float32)
    got = chainer.distributions.Categorical(p).log_prob(wrap(np.array([2, 0], np.int32)))
    np.testing.assert_allclose(got.array, np.log([0.5, 0.7]), rtol=1e-6)


def test_examples_of_unequal_length_are_padded():
    examples = [np.array([1, 2, 3], "f"), np.array([4], "f"), np.array([5, 6], "f")]
    got = chainer.dataset.concat_examples(examples, padding=-1)
    np.testing.assert_array_equal(got, [[1, 2, 3], [4, -1, -1], [5, 6, -1]])


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_fix_rounds_towards_zero(dtype):
    x = np.array([-2.5, -0.5, 0.5, 2.5], dtype)
    for y in (F.fix(x), F.fix(chainer.Variable(x))):
        assert y.dtype == dtype
        np.testing.assert_array_equal(y.array, [-2, 0, 0, 2])


def test_maxout_with_callable_initial_values():
    weights = np.random.RandomState(0).randn(2, 3, 4).astype("f")
    bias = np.arange(6, dtype="f").reshape(2, 3)

    def fill_weights(array):
        assert array.shape == (2, 3, 4)
        array[...] = weights

    def fill_bias(array):
        assert array.shape == (2, 3)
        array[...] = bias

    x = np.random.RandomState(1).randn(5, 4).astype("f")
    maxout = L.Maxout(4, 2, 3, fill_weights, fill_bias)
    want = (np.einsum("opi,bi->bop", weights, x) + bias).max(axis=2)
    np.testing.assert_allclose(maxout(x).array, want, rtol=1e-5, atol=1e-6)


def test_maxout_with_arrays_and_scalars():
    weights = np.random.RandomState(0).randn(2, 3, 4).astype("f")
    x = np.random.RandomState(1).randn(5, 4).astype("f")
    want = (np.einsum("opi,bi->bop", weights, x) + 1).max(axis=2)
    np.testing.assert_allclose(L.Maxout(4, 2, 3, weights, 1)(x).array, want, rtol=1e-5, atol=1e-6)
    assert L.Maxout(4, 2, 3, initial_bias=None)(x).shape == (5, 2)


def test_progress_bar_honours_its_arguments():
    import io
    import types

    out = io.StringIO()
    bar = chainer.training.extensions.ProgressBar(
        training_length=(8, "iteration"), update_interval=1, bar_length=10, out=out
    )
    updater = types.SimpleNamespace(iteration=4, epoch=0, epoch_detail=0.5)
    bar(types.SimpleNamespace(updater=updater))
    bar.finalize()
    assert "total [#####.....] 50.00%" in out.getvalue()
    assert "8 iterations" in out.getvalue()


def test_progress_bar_writes_to_the_present_stdout(capsys):
    import types

    bar = chainer.training.extensions.ProgressBar((8, "iteration"), update_interval=1)
    updater = types.SimpleNamespace(iteration=2, epoch=0, epoch_detail=0.25)
    bar(types.SimpleNamespace(updater=updater))
    assert "25.00%" in capsys.readouterr().out
