"""Four ranks on which things go wrong, and how to watch what the notebook says of it."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass

from notebook_kernel import Notebook, Ran, works

RANKS = 4
SOON = 5.0
"""Seconds within which the notebook must have said what is wrong."""

SETUP = """%%mn
import ctypes, os, signal, subprocess, time
import chainer.functions as F
import chainer.links as L

def trained(out=10):
    model = L.Linear(4, out)
    optimizer = nbmn.create_multi_node_optimizer(chainer.optimizers.SGD(0.1), comm)
    optimizer.setup(model)
    return model, optimizer

def step(model, optimizer):
    model.cleargrads()
    F.sum(model(np.ones((2, 4), model.W.dtype))).backward()
    optimizer.update()

def fail():
    raise ValueError("boom")
"""


@dataclass(frozen=True)
class Bug:
    """A cell, and what the notebook must say of it.

    ``{cell}`` stands for the cell, ``{setup}`` for the one with the functions.
    """

    code: str
    says: tuple[str, ...]
    error: str = "RanksStuck"
    kind: str = ""
    culprits: tuple[int, ...] = ()


def ends_by_itself(zoo: Notebook, bug: Bug) -> None:
    cell = zoo.next_cell()
    began = time.monotonic()
    ran = zoo.run("%%mn\n" + bug.code, seconds=30)
    took = time.monotonic() - began
    assert ran.error_name == bug.error, ran.error
    for text in bug.says:
        pattern = re.escape(text).replace(r"\{cell\}", re.escape(cell)).replace(r"\.\.\.", ".*")
        assert re.search(pattern, ran.error), f"{text!r} is not in\n{ran.error}"
    assert took < SOON
    if bug.kind:
        found = zoo.value(
            "(lambda e: (e.diagnosis.kind, e.diagnosis.culprits))(__import__('sys').last_value)"
        )
        assert found == (bug.kind, bug.culprits)
    works(zoo, RANKS)


class Shown:
    """Notes when a text appears under a cell."""

    def __init__(self, text: str) -> None:
        self._began = time.monotonic()
        self._text = text
        self.after = float("inf")
        """Seconds after which it did."""

    def __call__(self, ran: Ran) -> None:
        if self._text in ran.text and self.after == float("inf"):
            self.after = time.monotonic() - self._began
