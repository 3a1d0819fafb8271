"""Which part of a traceback a person reads."""

from __future__ import annotations

import types

import pytest

from nbmn.communicators import MismatchError
from nbmn.engine.stand_ins import NoKeyboardError
from nbmn.engine.tracebacks import users_part


def module(name: str, code: str, **names: object) -> types.ModuleType:
    made = types.ModuleType(name)
    made.__dict__.update(names)
    exec(code, made.__dict__)
    return made


def error_of(error: BaseException, *names: str) -> list[str]:
    """Modules that are shown of an error that went through these, the last raised it."""

    fail = module(names[-1], "def call(): raise error", error=error.with_traceback(None)).call
    for name in reversed(names[:-1]):
        fail = module(name, "def call(): inner()", inner=fail).call
    with pytest.raises(type(error)) as caught:
        fail()
    caught.value.__traceback__ = caught.value.__traceback__.tb_next  # this function's own
    shown, trace = [], users_part(caught.value)
    while trace is not None:
        shown.append(trace.tb_frame.f_globals["__name__"])
        trace = trace.tb_next
    return shown


CELL = "IPython.core.interactiveshell", "__main__"


@pytest.mark.parametrize(
    "error", [TypeError("bad"), MismatchError("bad"), SystemExit(3), NoKeyboardError("none")]
)
def test_what_nbmn_refuses_ends_at_the_users_line(error: BaseException) -> None:
    inner = "nbmn.communicators.activity", "nbmn.communicators.agreement"
    assert error_of(error, *CELL, *inner) == ["__main__"]
    assert error_of(error, *CELL, "mine", *inner) == ["__main__", "mine"]


def test_what_the_user_raises_within_nbmn_is_whole() -> None:
    path = "__main__", "nbmn.optimizers.creation", "__main__"
    assert error_of(ValueError("bad"), CELL[0], *path) == list(path)


def test_a_fault_of_nbmn_is_shown() -> None:
    inner = "nbmn.communicators.activity", "nbmn.communicators.agreement"
    assert error_of(AttributeError("x"), *CELL, *inner) == ["__main__", *inner]


def test_what_runs_a_trainer_is_left_out() -> None:
    path = "__main__", "nbmn.engine.training", "__main__", "chainer.training", "__main__"
    assert error_of(ValueError("bad"), CELL[0], *path) == list(path[2:])
