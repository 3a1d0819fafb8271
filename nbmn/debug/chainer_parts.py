"""What Chainer's objects are made of, under the names that their users know."""

from __future__ import annotations

from typing import Any

import chainer
from chainer.training import Trainer, Updater

from nbmn.debug.parts import Children, Parts, is_of_mpi

_ITERATOR = (
    *("current_position", "epoch", "is_new_epoch", "previous_epoch_detail"),
    *("batch_size", "repeat", "order_sampler", "dataset"),
)


def chainer_parts(value: Any) -> Parts | None:
    """Take one of Chainer's objects apart; None for others. Local."""
    # Wrappers of nbmn, and of ChainerMN, are what they wrap.
    inner = vars(value).get("actual_optimizer") if hasattr(value, "__dict__") else None
    if isinstance(inner, chainer.Optimizer):
        return optimizer(inner)
    if isinstance(value, chainer.Link):
        return link(value)
    if isinstance(value, chainer.Variable):
        return Parts(type(value).__name__, "not initialized")
    if isinstance(value, chainer.Optimizer):
        return optimizer(value)
    if isinstance(value, chainer.dataset.Iterator):
        return iterator(value)
    if isinstance(value, Updater):
        return updater(value)
    if isinstance(value, Trainer):
        return updater(value.updater)
    return None


def link(value: chainer.Link) -> Parts:
    """Parameters, persistent values, links, and attributes such as a ratio or a list.

    Not what a forward pass leaves in it, nor communicators.
    """
    attributes = vars(value)
    arrays = [*sorted(value._params), *sorted(value._persistent)]
    children: list[tuple[str, Any]] = [(f"/{name}", attributes[name]) for name in arrays]
    if isinstance(value, chainer.Sequential):
        layers = enumerate(value)
        children += [(f"[{i}]", f) for i, f in layers if not isinstance(f, chainer.Link)]
    if isinstance(value, (chainer.Chain, chainer.ChainList)):
        children += [(f"/{child.name}", child) for child in value.children()]
    links = {child.name for child in value.children()} if isinstance(value, chainer.Chain) else ()
    children += [
        (f".{name}", item)
        for name, item in sorted(attributes.items())
        if not name.startswith("_") and name not in {"name", *arrays, *links}
        # None is what a link sets where a forward pass leaves its results.
        if item is not None and not is_result(item) and not is_of_mpi(item)
    ]
    return Parts(type(value).__name__, type(value).__name__, children)


def is_result(value: Any) -> bool:
    """Whether a value is what a forward pass leaves in a link: variables."""
    if isinstance(value, (list, tuple)):
        return bool(value) and all(map(is_result, value))
    if isinstance(value, dict):
        return bool(value) and all(map(is_result, value.values()))
    return isinstance(value, chainer.Variable) and not isinstance(value, chainer.Parameter)


def optimizer(value: chainer.Optimizer) -> Parts:
    """Hyperparameters, progress, hooks, and the states of update rules by parameter."""
    children: list[tuple[str, Any]] = []
    hyperparameters = getattr(value, "hyperparam", None)
    if hyperparameters is not None:
        children += [(f".{name}", v) for name, v in sorted(hyperparameters.get_dict().items())]
    children += [(".t", value.t), (".epoch", value.epoch)]
    children.append((".loss_scale", getattr(value, "_loss_scale", None)))
    children += hooks("", value)
    target = value.target
    if target is not None:
        for path, param in sorted(target.namedparams()):
            children += rule(path, param.update_rule)
    return Parts(type(value).__name__, type(value).__name__, children)


def rule(path: str, value: Any) -> Children:
    """What the update of one parameter depends on."""
    if value is None:
        yield f"{path}.update_rule", None
        return
    own = vars(value.hyperparam)
    yield from ((f"{path}.{name}", own[name]) for name in sorted(own) if name != "_parent")
    yield f"{path}.enabled", value.enabled
    yield f"{path}.t", value.t
    yield from hooks(path, value)
    yield from ((f"{path}.{name}", item) for name, item in sorted((value.state or {}).items()))


def hooks(path: str, value: Any) -> Children:
    """Functions that change gradients before an update, or values after it."""
    hookable = getattr(value, "_hookable", None)
    for found in (
        hookable and hookable._pre_update_hooks,
        hookable and hookable._post_update_hooks,
    ):
        yield from ((f"{path}.hooks[{name!r}]", hook) for name, hook in (found or {}).items())


def iterator(value: chainer.dataset.Iterator) -> Parts | None:
    """Where it stands, and its dataset; None for one that does not say where it stands.

    Not by its ``serialize``: that of Chainer's own throws away what was read ahead.
    """
    if not hasattr(value, "current_position"):
        return None
    children = [(f".{name}", getattr(value, name)) for name in _ITERATOR if hasattr(value, name)]
    order = getattr(getattr(value, "_state", None), "order", None)
    children += [(".order", order)] if order is not None else []
    return Parts(type(value).__name__, type(value).__name__, children)


def updater(value: Updater) -> Parts:
    """Its iteration, optimizers, their models, and iterators."""
    children: list[tuple[str, Any]] = [(".iteration", getattr(value, "iteration", None))]
    for name, each in sorted(value.get_all_optimizers().items()):
        children += [(f".get_optimizer({name!r})", each), (f".model({name!r})", each.target)]
    iterators = getattr(value, "_iterators", {})
    children += [(f".get_iterator({name!r})", each) for name, each in sorted(iterators.items())]
    return Parts(type(value).__name__, type(value).__name__, children)
