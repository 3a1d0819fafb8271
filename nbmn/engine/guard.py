"""Where a rank may be interrupted: in the user's code, never between it and the answer."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import TypeVar

from nbmn.engine.reporter import reporter
from nbmn.phases import phases

T = TypeVar("T")


def guarded(
    run: str, work: Callable[[], T], traced: bool = True
) -> tuple[T | None, BaseException | None]:
    """Do ``work`` as the run of that name; local, and raises nothing.

    An interrupt raises KeyboardInterrupt in ``work`` only. The caller ends the
    run with :meth:`nbmn.engine.reporter.Reporter.end`.

    Parameters
    ----------
    traced
        Whether ``%mn_trace`` shows it.
    """
    try:
        return _work(run, work, traced)
    except KeyboardInterrupt as late:  # it came while the work was ending
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        return None, late


def _work(run: str, work: Callable[[], T], traced: bool) -> tuple[T | None, BaseException | None]:
    from nbmn.communicators import world

    value: T | None = None
    error: BaseException | None = None
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        reporter().begin(run)
        phases().begin_run(run, traced)
        world().begin_cell()
        value = work()
    except BaseException as failure:  # noqa: BLE001 - handed to the notebook
        error = failure
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return value, error
