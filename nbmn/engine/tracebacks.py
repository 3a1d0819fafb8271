"""Which part of a traceback is the user's: what leads to a cell and into nbmn explains little."""

from __future__ import annotations

from types import TracebackType


def users_part(error: BaseException) -> TracebackType | None:
    """The traceback without what runs the cell, and without nbmn's refusal of a call.

    Where nbmn refuses what it was called with, or is interrupted, the user's line is what
    matters. Errors that come from elsewhere are shown whole.
    """
    steps = []
    trace = error.__traceback__
    while trace is not None:
        steps.append(trace)
        trace = trace.tb_next
    packages = [_module(step).partition(".")[0] for step in steps]
    begin = next((i for i, package in enumerate(packages) if package != "IPython"), 0)
    inner = next((i for i, s in enumerate(steps) if _module(s).startswith("nbmn.engine.")), None)
    if inner is not None and set(packages[inner:]) != {"nbmn"}:
        begin = inner + 1
    steps, packages = steps[begin:], packages[begin:]
    if _refuses(error):
        while len(steps) > 1 and packages[len(steps) - 1] == "nbmn":
            steps.pop()
    shown = None
    for step in reversed(steps):
        shown = TracebackType(shown, step.tb_frame, step.tb_lasti, step.tb_lineno)
    return shown


def _refuses(error: BaseException) -> bool:
    return defined_in(error) == "nbmn" or type(error) in (
        TypeError,
        ValueError,
        RuntimeError,
        KeyboardInterrupt,
        SystemExit,
    )


def defined_in(error: BaseException) -> str:
    """The package of an exception's class, which may have been made with anything for a module."""
    return str(type(error).__module__).partition(".")[0]


def _module(step: TracebackType) -> str:
    return str(step.tb_frame.f_globals.get("__name__") or "")
