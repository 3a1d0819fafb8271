"""Double buffering: each mean is applied one update later, and none is lost."""

import io
import warnings

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
from least_squares import (
    BACKENDS,
    B,
    Delayed,
    Model,
    W,
    X,
    Y,
    adam,
    assert_equal,
    batch,
    gradient,
    make,
    step_of,
)
from rank_tools import need_ranks, raises

import nbmn
from nbmn.communicators import MismatchError


def check_every_mean_is_applied_one_update_later(comm):
    for name in BACKENDS:
        own = nbmn.create_communicator(name)
        size = 1 if name == "dummy" else comm.size
        optimizer, right = make(own), Delayed(size)
        for step in range(5):
            rows = batch(step, 0 if name == "dummy" else comm.rank, size)
            optimizer.update(optimizer.target, X[rows], Y[rows])
            right.update(step)
            assert_equal(optimizer, right)
        assert optimizer.t == 4
        optimizer.flush()
        right.flush()
        assert_equal(optimizer, right)
        optimizer.flush()  # nothing is left
        assert_equal(optimizer, right)


def check_parts_of_the_ranks(comm):
    need_ranks(comm, 2)
    part = comm.split(0 if comm.rank < 2 else 1, comm.rank)
    part.set_config("verify", True)  # every call is compared across ranks
    optimizer, right = make(part), Delayed(part.size)
    for step in range(4):
        step_of(part, optimizer, step)
        right.update(step)
    assert_equal(optimizer, right)


def check_forward_runs_while_the_last_step_is_averaged(comm):
    """The last rank begins step t only when rank 0 is in the forward of step t+1."""
    need_ranks(comm, 2)
    last = comm.size - 1
    told = []

    def tell():
        if comm.rank == 0 and told:
            # Averaging the step before cannot be over: the last rank waits for this.
            assert not optimizer._background._worker.idle()
            comm.send_obj("go on", last)
        told.append(1)

    def wait_and(model):
        def loss(x, y):
            comm.recv_obj(0)
            return model(x, y)

        return loss

    optimizer, right = make(comm, Model(0, tell)), Delayed(comm.size)
    for step in range(5):
        # Without overlap, rank 0 would wait for the last rank, which waits for rank 0.
        if comm.rank == last and step < 4:
            rows = batch(step, comm.rank, comm.size)
            model = optimizer.target
            if step == 0:
                # The first update shares values before the loss is computed.
                optimizer.update(wait_and(model), X[rows], Y[rows])
            else:
                comm.recv_obj(0)
                step_of(comm, optimizer, step)
        else:
            step_of(comm, optimizer, step)
        right.update(step)
    assert_equal(optimizer, right)
    comm.barrier()


def check_collectives_of_the_forward_do_not_mix(comm):
    totals = []
    model = Model(0, lambda: totals.append(float(comm.allreduce(np.array([1.0]))[0])))
    optimizer, right = make(comm, model), Delayed(comm.size)
    for step in range(6):
        step_of(comm, optimizer, step)
        comm.allgather_obj(step)
        right.update(step)
    assert_equal(optimizer, right)
    assert totals == [comm.size] * 6


def check_gradients_computed_by_the_user(comm):
    optimizer, right = make(comm), Delayed(comm.size)
    for step in range(4):
        rows = batch(step, comm.rank, comm.size)
        optimizer.target.cleargrads()
        optimizer.target(X[rows], Y[rows]).backward()
        optimizer.update()
        right.update(step)
    optimizer.flush()
    right.flush()
    assert_equal(optimizer, right)


def check_gradients_given_before_values_are_shared(comm):
    """Wrapped after setup: rank 0's gradients count, and so do all later ones."""
    model = Model(comm.rank)
    actual = chainer.optimizers.MomentumSGD(0.01).setup(model)
    optimizer = nbmn.create_multi_node_optimizer(actual, comm, double_buffering=True)
    right = Delayed(comm.size)
    for step in range(3):
        rows = batch(step, comm.rank, comm.size)
        model.cleargrads()
        model(X[rows], Y[rows]).backward()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            optimizer.update()
        told = [w for w in caught if "do not count" in str(w.message)]
        assert len(told) == (comm.rank == 0 and comm.size > 1 and step == 0)
        right.update(step)
        if step == 0:
            right.pending = gradient(W, B, batch(0, 0, comm.size))
    assert_equal(optimizer, right)


def check_configuration_of_the_communicator_counts(comm):
    own = nbmn.create_communicator("flat")
    model = chainer.Chain()
    with model.init_scope():
        model.w = chainer.Parameter(np.zeros(2))
    optimizer = make(own, model, chainer.optimizers.SGD(1.0))
    right = np.zeros(2)
    for dtype in (None, "float16", None):
        own.set_config("allreduce_grad_dtype", dtype)
        model.w.grad = np.array([1 / 3, 1 + comm.rank / 7])
        optimizer.update()
        optimizer.flush()
        grads = [np.array([1 / 3, 1 + rank / 7]).astype(dtype) for rank in range(comm.size)]
        right -= np.sum(grads, 0, "f4" if dtype else "f8") / comm.size
        np.testing.assert_allclose(model.w.array, right, rtol=1e-6 if dtype else 1e-7)


def check_hooks_and_zerograds(comm):
    actual = chainer.optimizers.MomentumSGD(0.01)
    optimizer, right = make(comm, actual=actual), Delayed(comm.size, decay=0.1)
    seen = []
    optimizer.add_hook(chainer.optimizer_hooks.WeightDecay(0.1))
    optimizer.add_hook(lambda o: seen.append(o.t), name="seen", timing="post")
    optimizer.use_cleargrads(False)
    for step in range(4):
        step_of(comm, optimizer, step)
        right.update(step)
    assert_equal(optimizer, right)
    assert seen == [1, 2, 3]


def check_loss_scale_that_changes_between(comm):
    optimizer, right = make(comm), Delayed(comm.size)
    for step in range(5):
        optimizer.set_loss_scale(2.0**step)
        step_of(comm, optimizer, step)
        right.update(step)
        assert_equal(optimizer, right)


def check_new_epoch_applies_what_is_pending(comm):
    optimizer, right = make(comm), Delayed(comm.size)
    for step in range(2):
        step_of(comm, optimizer, step)
        right.update(step)
    optimizer.new_epoch()
    right.flush()
    assert_equal(optimizer, right)
    assert optimizer.epoch == optimizer.actual_optimizer.epoch == 1


def check_resume_equals_an_uninterrupted_run(comm):
    """Bit for bit, from a snapshot after any number of updates, the first one too."""
    right = adam(comm)
    snapshots = []
    for step in range(5):
        step_of(comm, right, step)
        file = io.BytesIO()
        chainer.serializers.save_npz(file, {"o": right, "m": right.target}["o"])
        values = io.BytesIO()
        chainer.serializers.save_npz(values, right.target)
        snapshots.append((file, values))
    right.flush()
    for number, (file, values) in enumerate(snapshots):
        for loads_everywhere in (True, False):
            resumed = make(comm, Model(7), chainer.optimizers.Adam(0.01))
            if loads_everywhere or comm.rank == 0:
                for stream, into in ((file, resumed), (values, resumed.target)):
                    stream.seek(0)
                    chainer.serializers.load_npz(stream, into)
            for step in range(number + 1, 5):
                step_of(comm, resumed, step)
            if number == 4 and not loads_everywhere:
                continue  # only an update tells the others what is pending
            resumed.flush()
            assert resumed.t == right.t == 5
            np.testing.assert_array_equal(resumed.target.w.array, right.target.w.array)


def check_snapshots_of_other_optimizers(comm):
    double = adam(comm)
    step_of(comm, double, 0)
    step_of(comm, double, 1)
    file = io.BytesIO()
    chainer.serializers.save_npz(file, double)
    file.seek(0)
    plain = chainer.optimizers.Adam().setup(Model())
    chainer.serializers.load_npz(file, plain)
    assert plain.t == 1
    file = io.BytesIO()
    chainer.serializers.save_npz(file, plain)
    file.seek(0)
    chainer.serializers.load_npz(file, double)
    assert double.t == 1
    double.flush()
    assert double.t == 1


class Branched(chainer.Chain):
    """Uses its second layer only when told, and initialises it then."""

    def __init__(self, seed):
        super().__init__()
        rng = np.random.RandomState(seed)
        with self.init_scope():
            self.a = L.Linear(5, 2, initialW=chainer.initializers.Normal(0.3, rng=rng))
            self.b = L.Linear(None, 2, initialW=chainer.initializers.Normal(0.3, rng=rng))

    def forward(self, x, branch):
        y = self.a(x)
        return F.sum(y + self.b(x) if branch else y)


def check_branch_initialised_late(comm):
    """On the last rank only, and on all ranks at once with other values each."""
    x = X.astype("f")
    for users in ([comm.size - 1], range(comm.size)):
        model = Branched(comm.rank)
        optimizer = make(comm, model, chainer.optimizers.SGD(0.01))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for step in range(5):
                rows = batch(step, comm.rank, comm.size)
                optimizer.update(model, x[rows], step >= 2 and comm.rank in users)
            optimizer.flush()
        assert optimizer.t == 5
        # The gradients do not depend on the values: nothing may be missing.
        sums = [
            [x[batch(step, r, comm.size)].sum(0) for r in range(comm.size)] for step in range(5)
        ]
        rows = 12 // comm.size
        first = Branched(0)
        a = first.a.W.array - 0.01 * np.sum(sums, (0, 1)) / comm.size
        np.testing.assert_allclose(model.a.W.array, a, rtol=1e-4, atol=1e-5)
        source = Branched(users[-1] if len(users) == 1 else 0)
        source.b(x)
        used = [[sums[step][r] for r in users] for step in range(2, 5)]
        b = source.b.W.array - 0.01 * np.sum(used, (0, 1)) / comm.size
        np.testing.assert_allclose(model.b.W.array, b, rtol=1e-4, atol=1e-5)
        bias = -0.01 * rows * 3 * len(users) / comm.size
        np.testing.assert_allclose(model.b.b.array, bias, rtol=1e-4)


def check_lazy_from_the_start(comm):
    model = Branched(comm.rank)
    optimizer = make(comm, model, chainer.optimizers.SGD(0.01))
    for _ in range(3):
        optimizer.update(model, X.astype("f"), True)
    optimizer.flush()
    assert optimizer.t == 3
    source = Branched(0)
    source(X.astype("f"), True)
    right = source.b.W.array - 0.03 * X.sum(0).astype("f")
    np.testing.assert_allclose(model.b.W.array, right, rtol=1e-4, atol=1e-5)


def check_models_that_differ_are_an_error_at_the_next_update(comm):
    need_ranks(comm, 2)
    optimizer = make(comm)
    step_of(comm, optimizer, 0)
    if comm.rank == 0:
        with optimizer.target.init_scope():
            optimizer.target.extra = L.Linear(1, 1)
    with raises(MismatchError, "extra"):
        step_of(comm, optimizer, 1)  # its values cannot be shared either
        step_of(comm, optimizer, 2)
    assert comm.allreduce(np.array([1]))[0] == comm.size


def check_dropped_while_averaging(comm):
    for _ in range(5):
        optimizer = make(comm)
        step_of(comm, optimizer, 0)
        del optimizer
    assert comm.allreduce(np.array([1]))[0] == comm.size


def check_attributes_pass_through(comm):
    optimizer = make(comm, Model(0), chainer.optimizers.Adam(0.5))
    optimizer.alpha = 0.25
    assert optimizer.actual_optimizer.alpha == optimizer.alpha == 0.25
    assert hasattr(optimizer, "hyperparam")
    assert not hasattr(optimizer, "no_such_thing")
    assert "_pending" not in vars(optimizer.actual_optimizer)


def check_trainer_loses_no_gradient(comm):
    """Two epochs of three steps: the last mean is applied before the evaluator sees the model."""
    rows = 12 // comm.size
    dataset = chainer.datasets.TupleDataset(X, Y)
    shard = nbmn.scatter_dataset(dataset if comm.rank == 0 else None, comm)
    optimizer, right = make(comm, Model(0)), Delayed(comm.size)
    iterator = chainer.iterators.SerialIterator(shard, rows // 2, shuffle=False)
    updater = chainer.training.updaters.StandardUpdater(iterator, optimizer)
    trainer = chainer.training.Trainer(updater, (2, "epoch"), out=".")
    trainer.run()
    for step in range(4):
        halves = [
            np.arange(r * rows + step % 2 * (rows // 2), r * rows + (step % 2 + 1) * (rows // 2))
            for r in range(comm.size)
        ]
        grads = [gradient(right.w, right.b, half) for half in halves]
        right.flush()
        right.pending = [sum(g) / comm.size for g in zip(*grads, strict=True)]
        if step % 2:
            right.flush()
    assert_equal(optimizer, right)
