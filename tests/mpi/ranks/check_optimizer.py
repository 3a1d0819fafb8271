import copy
import io
import os
import signal
import warnings

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
from rank_tools import need_ranks, raises

import nbmn
from nbmn.communicators import world

DATA = np.random.RandomState(5).randn(12, 6).astype(np.float32)
LABELS = np.random.RandomState(6).randint(0, 3, 12).astype(np.int32)


def classifier(seed, lazy=False, batch_norm=False):
    rng = np.random.RandomState(seed)
    layers = [
        L.Linear(None if lazy else 6, 8, initialW=chainer.initializers.Normal(0.3, rng=rng)),
        L.BatchNormalization(8) if batch_norm else F.relu,
        L.Linear(None if lazy else 8, 3, initialW=chainer.initializers.Normal(0.3, rng=rng)),
    ]
    return L.Classifier(chainer.Sequential(*layers))


def parts(comm, step):
    order = np.random.RandomState(step).permutation(12)
    return np.split(order, comm.size)


def values(model):
    return {name: p.array.copy() for name, p in sorted(model.namedparams())}


def assert_alike(model, reference, rtol=1e-5):
    for name, array in values(reference).items():
        np.testing.assert_allclose(values(model)[name], array, rtol=rtol, atol=1e-6)


def train_alone(comm, make, optimizer, steps):
    model = make(0)
    optimizer.setup(model)
    optimizer.add_hook(chainer.optimizer_hooks.WeightDecay(0.01))
    for step in range(steps):
        everything = np.concatenate(parts(comm, step))
        optimizer.update(model, DATA[everything], LABELS[everything])
    return model


def train_together(comm, make, optimizer, steps):
    model = make(comm.rank)  # other weights on every rank
    optimizer = nbmn.create_multi_node_optimizer(optimizer, comm)
    optimizer.setup(model)
    optimizer.add_hook(chainer.optimizer_hooks.WeightDecay(0.01))
    for step in range(steps):
        mine = parts(comm, step)[comm.rank]
        optimizer.update(model, DATA[mine], LABELS[mine])
    assert optimizer.t == steps
    return model


def check_equals_one_rank(comm):
    for lazy in [False, True]:
        for make_optimizer in [
            lambda: chainer.optimizers.MomentumSGD(0.1),
            chainer.optimizers.Adam,
        ]:

            def make(seed, lazy=lazy):
                return classifier(seed, lazy)

            together = train_together(comm, make, make_optimizer(), 4)
            assert_alike(together, train_alone(comm, make, make_optimizer(), 4), 1e-3)


def check_first_gradient_is_used(comm):
    model = classifier(comm.rank)
    optimizer = nbmn.create_multi_node_optimizer(chainer.optimizers.SGD(0.1), comm).setup(model)
    before = values(model)
    mine = parts(comm, 0)[comm.rank]
    optimizer.update(model, DATA[mine], LABELS[mine])
    assert any((values(model)[name] != array).any() for name, array in before.items())


def check_gradients_computed_by_the_user(comm):
    model = classifier(comm.rank)
    optimizer = nbmn.create_multi_node_optimizer(chainer.optimizers.SGD(0.1), comm).setup(model)
    alone = classifier(0)
    sgd = chainer.optimizers.SGD(0.1).setup(alone)
    for step in range(3):
        mine = parts(comm, step)[comm.rank]
        model.cleargrads()
        model(DATA[mine], LABELS[mine]).backward()
        optimizer.update()
        everything = np.concatenate(parts(comm, step))
        sgd.update(alone, DATA[everything], LABELS[everything])
    assert_alike(model, alone)


def check_wrapping_an_optimizer_that_is_set_up(comm):
    """Gradients of other weights than rank 0's do not count; rank 0's does."""
    model = classifier(comm.rank)
    optimizer = nbmn.create_multi_node_optimizer(chainer.optimizers.SGD(0.1).setup(model), comm)
    alone = classifier(0)
    sgd = chainer.optimizers.SGD(0.1).setup(alone)
    mine = parts(comm, 0)[comm.rank]
    model.cleargrads()
    model(DATA[mine], LABELS[mine]).backward()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        optimizer.update()
    told = [w for w in caught if "do not count" in str(w.message)]
    assert len(told) == (1 if comm.rank == 0 and comm.size > 1 else 0)
    first = parts(comm, 0)[0]
    sgd.update(alone, DATA[first], LABELS[first])
    assert_alike(model, alone)


def check_equal_weights_from_the_start_all_count(comm):
    model = classifier(0, lazy=True)
    optimizer = nbmn.create_multi_node_optimizer(chainer.optimizers.SGD(0.1), comm).setup(model)
    alone = classifier(0, lazy=True)
    sgd = chainer.optimizers.SGD(0.1).setup(alone)
    mine = parts(comm, 0)[comm.rank]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(DATA[mine], LABELS[mine])
        model.cleargrads()
        model(DATA[mine], LABELS[mine]).backward()
        optimizer.update()
    everything = np.concatenate(parts(comm, 0))
    sgd.update(alone, DATA[everything], LABELS[everything])
    assert_alike(model, alone)


class Branched(chainer.Chain):
    """Uses its second branch only when told, and initialises it then."""

    def __init__(self, seed):
        super().__init__()
        rng = np.random.RandomState(seed)
        with self.init_scope():
            self.a = L.Linear(6, 3, initialW=chainer.initializers.Normal(0.3, rng=rng))
            self.b = L.Linear(None, 3, initialW=chainer.initializers.Normal(0.3, rng=rng))

    def forward(self, x, t, scale, branch):
        y = self.a(x)
        if branch:
            y = y + self.b(x)
        return F.sum(F.softmax_cross_entropy(y, t, reduce="no")) * scale


def check_branch_initialised_late_and_on_one_rank_only(comm):
    last = comm.size - 1
    model = Branched(comm.rank)
    optimizer = nbmn.create_multi_node_optimizer(chainer.optimizers.SGD(0.1), comm).setup(model)
    alone = Branched(last)  # the branch's values are those of the rank that used it
    alone.a.W.array[...] = Branched(0).a.W.array
    sgd = chainer.optimizers.SGD(0.1).setup(alone)
    for step in range(4):
        by_rank = parts(comm, step)
        mine = by_rank[comm.rank]
        use = step >= 2 and comm.rank == last
        optimizer.update(model, DATA[mine], LABELS[mine], comm.size / 12, use)

        def whole(by_rank=by_rank, step=step):
            return sum(
                alone(DATA[part], LABELS[part], 1 / 12, step >= 2 and rank == last)
                for rank, part in enumerate(by_rank)
            )

        sgd.update(whole)
    assert_alike(model, alone)


def check_running_statistics_advance_once(comm):
    model = classifier(0, lazy=True, batch_norm=True)
    optimizer = nbmn.create_multi_node_optimizer(chainer.optimizers.SGD(0.1), comm).setup(model)
    alone = classifier(0, lazy=True, batch_norm=True)
    mine = parts(comm, 0)[comm.rank]
    optimizer.update(model, DATA[mine], LABELS[mine])
    alone(DATA[mine], LABELS[mine])
    np.testing.assert_allclose(
        model.predictor[1].avg_mean, alone.predictor[1].avg_mean, rtol=1e-5, atol=1e-7
    )


def check_what_is_no_model_on_one_rank_is_an_error_on_all(comm):
    for double_buffering in (False, True):
        optimizer = nbmn.create_multi_node_optimizer(
            chainer.optimizers.SGD(0.1), comm, double_buffering
        )
        with raises(TypeError, f"on rank {comm.size - 1}", "must be a link"):
            optimizer.setup("none" if comm.rank == comm.size - 1 else classifier(0))
        model = classifier(comm.rank)
        optimizer.setup(model)
        assert_alike(model, classifier(0))


def check_passes_through(comm):
    model = classifier(0)
    actual = chainer.optimizers.Adam(alpha=0.01)
    optimizer = nbmn.create_multi_node_optimizer(actual, comm)
    assert optimizer.setup(model) is optimizer
    assert optimizer.target is model
    optimizer.alpha = 0.5
    assert actual.alpha == 0.5
    optimizer.new_epoch()
    assert actual.epoch == optimizer.epoch == 1
    optimizer.set_loss_scale(8.0)
    optimizer.update(model, DATA, LABELS)
    alone = classifier(0)
    chainer.optimizers.Adam(alpha=0.5).setup(alone).update(alone, DATA, LABELS)
    assert_alike(model, alone, 1e-4)
    store = chainer.serializers.DictionarySerializer()
    store.save(optimizer)
    other = chainer.optimizers.Adam().setup(classifier(0))
    chainer.serializers.NpzDeserializer(store.target).load(other)
    assert other.t == 1
    assert copy.copy(optimizer).actual_optimizer is actual


def check_snapshot_loaded_on_rank_0_only(comm):
    """The others take over its values and its state with the next update."""
    for double in (False, True):

        def make(seed, double=double):
            adam = chainer.optimizers.Adam(0.01)
            wrapped = nbmn.create_multi_node_optimizer(adam, comm, double_buffering=double)
            return wrapped.setup(classifier(seed))

        optimizer, alone = make(0), chainer.optimizers.Adam(0.01).setup(classifier(0))
        files = [io.BytesIO(), io.BytesIO()]
        for step in range(5):
            mine = parts(comm, step)[comm.rank]
            if step == 2:
                for file, thing in zip(files, (optimizer, optimizer.target), strict=True):
                    chainer.serializers.save_npz(file, thing)
                    file.seek(0)
                optimizer = make(5)
                optimizer.update(optimizer.target, DATA[mine], LABELS[mine])  # thrown away
                for file, thing in zip(files, (optimizer, optimizer.target), strict=True):
                    if comm.rank == 0:
                        chainer.serializers.load_npz(file, thing)
            optimizer.update(optimizer.target, DATA[mine], LABELS[mine])
            everyone = np.concatenate(parts(comm, step))
            if not double:
                alone.update(alone.target, DATA[everyone], LABELS[everyone])
        assert optimizer.t == 5 - double
        for _, array in values(optimizer.target).items():
            assert all((theirs == array).all() for theirs in comm.allgather(array))
        if not double:
            assert_alike(optimizer.target, alone.target, 1e-3)


def check_interrupt_while_a_state_is_made(comm):
    """It strikes after the update, and the state that all ranks take over then is whole."""
    model = classifier(comm.rank)
    optimizer = nbmn.create_multi_node_optimizer(chainer.optimizers.Adam(0.01), comm).setup(model)
    rule = model.predictor[2].W.update_rule
    made = rule.init_state

    def interrupted(param):
        os.kill(os.getpid(), signal.SIGINT)
        made(param)

    rows = DATA[:4], LABELS[:4]
    if comm.rank == 0:
        rule.init_state = interrupted
        with raises(KeyboardInterrupt):
            optimizer.update(model, *rows)
        del rule.init_state
    else:
        optimizer.update(model, *rows)
    world().renew()
    for _ in range(2):
        optimizer.update(model, *rows)
    for param in model.params():
        assert param.update_rule.t == 3
        for array in (param.array, *param.update_rule.state.values()):
            everyone = comm.allgather(array)
            assert all((theirs == everyone[0]).all() for theirs in everyone)


def check_model_that_grows(comm):
    for double in (False, True):
        model = chainer.Chain()
        with model.init_scope():
            model.a = L.Linear(6, 3, initialW=np.zeros((3, 6)))
        optimizer = nbmn.create_multi_node_optimizer(
            chainer.optimizers.SGD(0.5), comm, double_buffering=double
        ).setup(model)

        def loss(x, model=model):
            y = sum(F.sum(child(x)) for child in model.children())
            return y * (comm.size / 12)

        for step in range(4):
            if step == 2:
                if double:
                    optimizer.flush()
                with model.init_scope():
                    model.b = L.Linear(6, 3, initialW=np.full((3, 6), comm.rank))
                optimizer.actual_optimizer.setup(model)
            optimizer.update(loss, DATA[parts(comm, step)[comm.rank]])
        if double:
            optimizer.flush()
        mean = DATA.mean(0)
        np.testing.assert_allclose(model.a.W.array, -2.0 * mean * np.ones((3, 1)), atol=1e-5)
        np.testing.assert_allclose(model.b.W.array, -1.0 * mean * np.ones((3, 1)), atol=1e-5)


def check_dynamic_loss_scaling(comm):
    """A step that is not finite on one rank is skipped on all, and the scale is the same."""
    for double in (False, True):
        model = chainer.Chain()
        with model.init_scope():
            model.w = chainer.Parameter(np.ones(3, np.float16))
        optimizer = nbmn.create_multi_node_optimizer(
            chainer.optimizers.SGD(0.5), comm, double_buffering=double
        ).setup(model)
        optimizer.loss_scaling(interval=1)
        applied = 0.0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for step in range(6):
                slope = 2.0**-step * (comm.rank + 1)
                bad = step == 3 and comm.rank == comm.size - 1
                factor = np.full(3, np.inf if bad else slope, np.float16)
                optimizer.update(lambda model=model, factor=factor: F.sum(model.w * factor))
                if step != 3:
                    applied += 2.0**-step * (comm.size + 1) / 2
            if double:
                optimizer.flush()
        # Doubled thrice, halved, doubled twice: by now it knows that there can be too much.
        assert optimizer._loss_scale == 2.0**4
        np.testing.assert_allclose(model.w.array, 1 - 0.5 * applied, rtol=4e-3)
        assert set(comm.allgather_obj(optimizer._loss_scale)) == {optimizer._loss_scale}


def check_trainer(comm):
    """A whole Trainer, with scattered data and the multi-node evaluator."""
    dataset = chainer.datasets.TupleDataset(DATA, LABELS)
    shard = nbmn.scatter_dataset(dataset if comm.rank == 0 else None, comm)
    model = classifier(comm.rank)
    optimizer = nbmn.create_multi_node_optimizer(chainer.optimizers.SGD(0.1), comm).setup(model)
    iterator = chainer.iterators.SerialIterator(shard, 12 // comm.size, shuffle=False)
    updater = chainer.training.updaters.StandardUpdater(iterator, optimizer)
    trainer = chainer.training.Trainer(updater, (3, "epoch"), out="/nonexistent")
    test = chainer.iterators.SerialIterator(shard, 5, repeat=False, shuffle=False)
    evaluator = chainer.training.extensions.Evaluator(test, model)
    trainer.extend(nbmn.create_multi_node_evaluator(evaluator, comm))
    log = []
    trainer.extend(
        lambda t: log.append(dict(t.observation)),
        name="log",
        trigger=(1, "epoch"),
        priority=chainer.training.PRIORITY_READER,
    )
    trainer.out = "."
    trainer.run()

    alone = classifier(0)
    sgd = chainer.optimizers.SGD(0.1).setup(alone)
    for epoch in range(3):
        sgd.update(alone, DATA, LABELS)
        with chainer.using_config("train", False):
            loss = float(alone(DATA, LABELS).array)
        np.testing.assert_allclose(log[epoch]["validation/main/loss"], loss, rtol=1e-5)
    assert_alike(model, alone)
    need_ranks(comm, 1)
