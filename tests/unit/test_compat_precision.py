"""Chainer's sums and optimizers on a NumPy whose scalars are as strong as its arrays."""

import numpy as np
import pytest

chainer = pytest.importorskip("chainer")
L = chainer.links
hooks = chainer.optimizer_hooks


def many_halves():
    return (np.random.RandomState(0).rand(20_000) * 5).astype(np.float16)


@pytest.mark.short
@pytest.mark.parametrize("form", [lambda v: v, np.asarray, chainer.Variable], ids=str)
def test_mean_of_many_halves(form):
    values = many_halves()
    summary = chainer.DictSummary()
    for value in values:
        summary.add({"loss": form(np.asarray(value)) if form is chainer.Variable else form(value)})
    wide = values.astype(np.float64)
    got = summary.make_statistics()
    assert got["loss"] == pytest.approx(wide.mean(), rel=1e-9)
    assert got["loss.std"] == pytest.approx(wide.std(), rel=1e-6)
    assert summary.compute_mean()["loss"].dtype == np.float64


def test_mean_of_weighted_halves():
    values = many_halves()
    weights = (np.random.RandomState(1).rand(20_000) * 3).astype(np.float16)
    summary = chainer.DictSummary()
    for value, weight in zip(values, weights, strict=True):
        summary.add({"loss": (value, weight)})
    want = np.average(values.astype("d"), weights=weights.astype("d"))
    assert summary.compute_mean()["loss"] == pytest.approx(want, rel=1e-9)


def test_summary_of_small_integers_does_not_wrap():
    summary = chainer.Summary()
    for _ in range(3):
        summary.add(np.uint8(200))
    assert summary.make_statistics() == (200, 0)


def test_summary_of_python_numbers():
    summary = chainer.Summary()
    summary.add(1)
    summary.add(2.5, weight=3)
    assert summary.compute_mean() == pytest.approx(8.5 / 4)


@pytest.mark.parametrize("weight", [1, 0.25, np.float16(0.25)], ids=repr)
def test_summary_goes_on_after_a_snapshot(tmp_path, weight):
    values = many_halves()[:100]
    first, second = chainer.DictSummary(), chainer.DictSummary()
    for value in values[:50]:
        first.add({"loss": (value, weight)})
    chainer.serializers.save_npz(tmp_path / "summary.npz", first)
    chainer.serializers.load_npz(tmp_path / "summary.npz", second)
    for value in values[50:]:
        second.add({"loss": (value, weight)})
    assert second.compute_mean()["loss"] == pytest.approx(values.astype("d").mean(), rel=1e-9)


def test_log_report_averages_halves(tmp_path):
    class Constant(chainer.Chain):
        def __init__(self):
            super().__init__()
            with self.init_scope():
                self.w = chainer.Parameter(np.zeros(1, np.float32))

        def forward(self, x):
            chainer.report({"value": x[0]}, self)
            return chainer.functions.sum(self.w)

    values = many_halves()[:6000]
    model = Constant()
    optimizer = chainer.optimizers.SGD().setup(model)
    iterator = chainer.iterators.SerialIterator(values, 1, shuffle=False)
    updater = chainer.training.StandardUpdater(iterator, optimizer)
    trainer = chainer.training.Trainer(updater, (1, "epoch"), out=str(tmp_path))
    trainer.extend(log := chainer.training.extensions.LogReport())
    trainer.run()
    assert log.log[-1]["main/value"] == pytest.approx(values.astype("d").mean(), rel=1e-9)


class Observed:
    """As much of a trainer as MicroAverage asks for."""

    def __init__(self, numerator, denominator):
        self.observation = {"hits": numerator, "seen": denominator}


def test_micro_average_of_many_halves(tmp_path):
    hits = many_halves()
    fires = []
    average = chainer.training.extensions.MicroAverage(
        "hits", "seen", "rate", trigger=lambda trainer: bool(fires)
    )
    for hit in hits[:-1]:
        average(Observed(hit, np.float16(2)))
    chainer.serializers.save_npz(tmp_path / "average.npz", average)
    resumed = chainer.training.extensions.MicroAverage(
        "hits", "seen", "rate", trigger=lambda trainer: bool(fires)
    )
    chainer.serializers.load_npz(tmp_path / "average.npz", resumed)
    fires.append(True)
    reporter = chainer.Reporter()
    with reporter.scope({}):
        resumed(Observed(hits[-1], np.float16(2)))
        got = reporter.observation["rate"]
    assert got == pytest.approx(hits.astype("d").sum() / (2 * len(hits)), rel=1e-9)


OPTIMIZERS = [
    "SGD",
    "MomentumSGD",
    "AdaDelta",
    "AdaGrad",
    "Adam",
    "MSVAG",
    "NesterovAG",
    "RMSprop",
    "RMSpropGraves",
    "SMORMS3",
]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_hyperparameters_from_numpy_train_alike(name):
    def trained(number):
        model = L.Linear(3, 4, initialW=np.ones((4, 3), "f"))
        optimizer = getattr(chainer.optimizers, name)()
        for key, value in vars(optimizer.hyperparam).copy().items():
            if isinstance(value, float):
                setattr(optimizer.hyperparam, key, number(value))
        optimizer.setup(model)
        random = np.random.RandomState(1)
        for _ in range(5):
            for param in model.params():
                param.grad = random.randn(*param.shape).astype("f")
            optimizer.update()
        return model

    want, got = trained(float), trained(np.float64)
    np.testing.assert_array_equal(got.W.array, want.W.array)
    for value in got.W.update_rule.state.values():
        assert getattr(value, "dtype", np.float32) == np.float32


def half_linear():
    with chainer.using_config("dtype", np.float16):
        return L.Linear(300, 400, initialW=0.01)


def updated(model, hook):
    optimizer = chainer.optimizers.SGD(1.0).setup(model)
    optimizer.add_hook(hook)
    before = model.W.array.astype(np.float64)
    optimizer.update()
    return model.W.array.astype(np.float64) - before


def test_clipping_of_half_gradients_with_a_large_norm():
    model = half_linear()
    model.W.grad = np.ones((400, 300), np.float16)
    model.b.grad = np.zeros(400, np.float16)
    step = updated(model, hooks.GradientClipping(5.0))
    assert np.linalg.norm(step) == pytest.approx(5.0, rel=1e-2)


def test_clipping_leaves_small_gradients_alone():
    model = half_linear()
    model.W.grad = np.full((400, 300), 2.0**-10, np.float16)
    model.b.grad = np.zeros(400, np.float16)
    assert updated(model, hooks.GradientClipping(5.0)) == pytest.approx(-(2.0**-10), abs=1e-5)


def test_lars_of_half_parameters():
    model = half_linear()
    model.W.grad = np.ones((400, 300), np.float16)
    model.b.array[...] = 1
    model.b.grad = np.zeros(400, np.float16)
    weight = float(np.float16(0.01))
    # |W| / (eps + |g| + decay |W|) times g + decay W, all entries alike
    decay = 0.5
    rate = weight / (1 + decay * weight)
    want = -rate * (1 + decay * weight)
    step = updated(model, hooks.GradientLARS(weight_decay=decay))
    assert step == pytest.approx(want, rel=1e-2)
    assert np.isfinite(model.b.array).all()


def test_lars_of_a_zero_half_gradient_is_no_step():
    model = half_linear()
    model.W.grad = np.zeros((400, 300), np.float16)
    model.b.grad = np.zeros(400, np.float16)
    assert (updated(model, hooks.GradientLARS()) == 0).all()
