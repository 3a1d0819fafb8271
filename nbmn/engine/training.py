"""Runs a Chainer trainer on this rank and reports each of its steps."""

from __future__ import annotations

import difflib
import math
import numbers
from collections.abc import Collection
from typing import Any

from chainer.training import Extension, Trainer, extension
from IPython import get_ipython

from nbmn.engine.lines import cell_filename
from nbmn.engine.refusal import Refusal
from nbmn.engine.reporter import Reporter, reporter
from nbmn.optimizers import DoubleBufferingOptimizer
from nbmn.phases import phases

NAME = "nbmn_live_report"


class LiveReport(Extension):
    """Sends what the trainer observed in each step to the board.

    Runs after the extensions that add to the observation (evaluators are
    writers), so that their values travel with the step.
    """

    trigger = (1, "iteration")
    priority = extension.PRIORITY_READER
    name = NAME

    def __init__(self, line: Reporter) -> None:
        self._line = line

    def __call__(self, trainer: Trainer) -> None:
        phases().reach()
        updater = trainer.updater
        self._line.step(
            {name: value for name, value in trainer.observation.items() if _is_scalar(value)},
            samples=_samples(updater),
            iteration=updater.iteration,
            epoch=getattr(updater, "epoch_detail", None),
        )
        phases().mark("data")


class TrainerError(Refusal):
    """There is no trainer of that name, or it cannot run."""


def train(trainer: Any, name: str = "trainer") -> None:
    """Run a trainer with the live report. Collective, as the trainer's updates are.

    Raises
    ------
    TrainerError
        ``trainer`` is none, or it has run before; Chainer's trainers run once.
    """
    if not isinstance(trainer, Trainer):
        raise TrainerError(
            f"{name} is a {type(trainer).__name__} on this rank, not a chainer.training.Trainer"
        )
    line = reporter()
    try:
        trainer.get_extension(NAME)
    except ValueError:
        has_run = getattr(trainer, "_done", False)
    else:
        has_run = True
    if has_run:
        raise TrainerError(
            f"{name} has run already, and a trainer runs once: make it anew, without its run(), "
            "which is %mn_train's part (or name another: %mn_train NAME)"
        )
    trainer.extend(LiveReport(line))
    iterations, epochs = _goal(trainer)
    line.start_run(name, iterations, epochs)
    __tracebackhide__ = True  # these lines explain nothing to the user
    with phases().trainer():
        trainer.run(show_loop_exception_msg=False)  # the notebook shows it
        for optimizer in _optimizers(trainer.updater):
            if isinstance(optimizer, DoubleBufferingOptimizer):
                optimizer.flush()  # it may have stopped in the midst of an epoch


def train_named(name: str) -> None:
    """Run the trainer of that name in the namespace.

    Raises
    ------
    TrainerError
        There is none, or it cannot run.
    """
    shell = get_ipython()
    # As the cell's first line, where the magic stands: that is where its errors and waits are.
    call = compile("train(find(space, name), name)", cell_filename(shell.compile.label), "exec")
    exec(call, {"train": train, "find": _find, "space": shell.user_ns, "name": name})


def _find(namespace: dict[str, Any], name: str) -> Any:
    if name in namespace:
        return namespace[name]
    trainers = [other for other, value in namespace.items() if isinstance(value, Trainer)]
    near = difflib.get_close_matches(name, trainers, 1, 0)
    hint = (
        f"is it {near[0]}?"
        if near
        else f"assign your Trainer to {name} in this cell or an earlier %%mn cell"
    )
    raise TrainerError(f"there is no variable {name!r} on this rank; {hint}")


def _optimizers(updater: Any) -> Collection[Any]:
    try:
        return updater.get_all_optimizers().values()
    except (AttributeError, NotImplementedError):  # an updater of the user's own
        return ()


def _is_scalar(value: Any) -> bool:
    """Whether the board can draw an observation; Chainer lets users report anything."""
    array = getattr(value, "array", value)
    return isinstance(array, numbers.Number) or getattr(array, "size", 0) == 1


def _samples(updater: Any) -> int | None:
    """Samples this rank processed in the last step, as far as the iterator knows."""
    try:
        return updater.get_iterator("main").batch_size
    except (AttributeError, KeyError):
        return None


def _goal(trainer: Trainer) -> tuple[int | None, float | None]:
    """Iterations and epochs in all, as far as the stop trigger says."""
    trigger = trainer.stop_trigger
    if not hasattr(trigger, "get_training_length"):
        return None, None
    period, unit = trigger.get_training_length()
    if unit == "iteration":
        return int(period), None
    try:
        iterator = trainer.updater.get_iterator("main")
        steps = period * len(iterator.dataset) / iterator.batch_size
    except (AttributeError, KeyError, TypeError):
        return None, float(period)
    return math.ceil(steps), float(period)
