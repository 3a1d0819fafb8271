"""Arguments that Chainer takes and then forgets."""

from __future__ import annotations

import functools
from types import ModuleType

from nbmn.compat.repair import Repair


def _progress_bar(module: ModuleType) -> None:
    original = module.ProgressBar.__init__

    @functools.wraps(original)
    def __init__(self, training_length=None, update_interval=100, bar_length=50, out=None):
        original(self, training_length, update_interval, bar_length)
        # With out=None it writes to the sys.stdout of this moment, not of Chainer's import.
        self._pbar = module._TrainerProgressBar(bar_length, out)
        self._pbar.training_length = training_length
        self._out = self._pbar._out

    module.ProgressBar.__init__ = __init__


REPAIRS = (
    Repair(
        "chainer.training.extensions.progress_bar",
        "training_length, bar_length and out handed to the bar",
        "ProgressBar stored these arguments and drew its bar without them",
        after=_progress_bar,
    ),
)
