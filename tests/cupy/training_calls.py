"""Calls of what trains: optimizers, hooks, updaters; what they take is told in chainer_calls."""

from __future__ import annotations

import inspect
import io
import tempfile

import chainer
import chainer.function_hooks
import chainer.functions as F
import chainer.links as L
import numpy as np


def optimized(make, *hooks):
    """Update a link twice; return its parameters and all of their states."""

    def run(a):
        made = a.send(L.Linear(3, 2))
        optimizer = make().setup(made)
        for hook in hooks:
            optimizer.add_hook(hook())
        for _ in range(2):
            optimizer.update(lambda: F.sum(made(a.f(2, 3))))
        states = [p.update_rule.state or {} for p in made.params()]
        return [
            *made.params(),
            *(p.grad for p in made.params()),
            *(
                value
                for state in states
                for _, value in sorted(state.items())
                if hasattr(value, "dtype")
            ),
        ]

    return run


def wide(optimizer, name):
    """The optimizer with a numpy.float64 learning rate, as numpy.logspace yields them."""

    def make():
        made = optimizer()
        value = getattr(made, name)
        setattr(made, name, np.float64(value))
        return made

    return make


def mixed():
    made = chainer.optimizers.Adam()
    made.use_fp32_update()
    return made


ADAMS = ("Adam", "AdamW", "AMSGrad", "AMSBound", "AdaBound")
RULES = [rule for _, rule in inspect.getmembers(chainer.optimizers, inspect.isclass)]
HOOKS = chainer.optimizer_hooks
OPTIMIZERS = {
    **{rule.__name__: optimized(rule) for rule in RULES},
    **{
        f"{rule.__name__} of a float64 rate": optimized(
            wide(rule, "alpha" if rule.__name__ in ADAMS else "lr")
        )
        for rule in RULES
        if rule is not chainer.optimizers.AdaDelta
    },
    "float32 update": optimized(mixed),
    "GradientClipping": optimized(chainer.optimizers.SGD, lambda: HOOKS.GradientClipping(1.0)),
    "GradientHardClipping": optimized(
        chainer.optimizers.SGD, lambda: HOOKS.GradientHardClipping(-1, 1)
    ),
    "GradientLARS": optimized(chainer.optimizers.SGD, HOOKS.GradientLARS),
    "GradientNoise": optimized(chainer.optimizers.SGD, lambda: HOOKS.GradientNoise(0.3)),
    "Lasso": optimized(chainer.optimizers.SGD, lambda: HOOKS.Lasso(0.1)),
    "WeightDecay": optimized(chainer.optimizers.SGD, lambda: HOOKS.WeightDecay(0.1)),
    "WeightDecay of a float64 rate": optimized(
        chainer.optimizers.SGD, lambda: HOOKS.WeightDecay(np.float64(0.1))
    ),
}


def on_device(call):
    """Do on CuPy what NumPy has no part in."""

    def run(a):
        if a.xp is not np:
            call(a)
        return []

    return run


def profiled(hook):
    def run(a):
        with hook():
            F.sum(F.relu(F.linear(a.x(2, 3), a.x(4, 3)))).backward()

    return on_device(run)


def gathered(a):
    from chainer.training.updaters import multiprocess_parallel_updater as updater

    model = a.send(L.Linear(3, 2))
    model.cleargrads()
    F.sum(model(a.f(2, 3))).backward()
    grads, values = updater.gather_grads(model), updater.gather_params(model)
    updater.scatter_grads(model, grads)
    updater.scatter_params(model, values)


def packed(a):
    from chainermn.communicators import _memory_utility

    for kernel in ("pack", "unpack"):
        getattr(_memory_utility, f"_cupy_batched_{kernel}_params")().compile()


def numerically(a):
    from chainer import gradient_check

    x, gy = a.f(2, 3), a.f(2, 3)
    return list(gradient_check.numerical_grad(lambda: (x * x,), (x,), (gy,)))


def saved(a):
    first, second = a.send(L.BatchNormalization(3)), a.send(L.BatchNormalization(3))
    file = io.BytesIO()
    chainer.serializers.save_npz(file, first)
    file.seek(0)
    chainer.serializers.load_npz(file, second)
    return [*second.params(), second.avg_mean]


def batched(a):
    examples = [(np.arange(n + 1, dtype=a.dtype), np.int32(n)) for n in range(3)]
    return list(chainer.dataset.concat_examples(examples, a.device, padding=(0, None)))


def combined(a):
    model = a.send(L.Linear(3, 2))
    other = model.copy(mode="copy")
    for link in (model, other):
        link.cleargrads()
        F.sum(link(a.f(2, 3))).backward()
    model.addgrads(other)
    model.copyparams(other)
    moved = model.copy().to_device("@numpy").to_device(a.device)
    return [*moved.params(), *(p.grad for p in model.params())]


def trained(a):
    model = a.send(L.Classifier(L.Linear(3, 2)))
    optimizer = chainer.optimizers.MomentumSGD().setup(model)
    examples = [(np.full(3, n, a.dtype), np.int32(n % 2)) for n in range(4)]

    def batches(**options):
        return chainer.iterators.SerialIterator(examples, 2, **options)

    extensions = chainer.training.extensions
    with tempfile.TemporaryDirectory() as folder:
        updater = chainer.training.StandardUpdater(batches(), optimizer, device=a.device)
        trainer = chainer.training.Trainer(updater, (2, "epoch"), out=folder)
        evaluated = batches(repeat=False, shuffle=False)
        trainer.extend(extensions.Evaluator(evaluated, model, device=a.device))
        trainer.extend(extensions.ParameterStatistics(model, {"mean": lambda x: x.mean()}))
        trainer.extend(extensions.snapshot())
        trainer.extend(log := extensions.LogReport())
        trainer.run()
    assert len(log.log) == 2
    return list(model.params())


OTHERS = {
    "CUDAProfileHook": profiled(chainer.function_hooks.CUDAProfileHook),
    "CupyMemoryProfileHook": profiled(chainer.function_hooks.CupyMemoryProfileHook),
    "MultiprocessParallelUpdater": on_device(gathered),
    "chainermn's packing": on_device(packed),
    "concat_examples": batched,
    "copies of links": combined,
    "gradient_check": numerically,
    "print_runtime_info": on_device(lambda a: chainer.print_runtime_info(io.StringIO())),
    "serializers": saved,
    "training": trained,
}
