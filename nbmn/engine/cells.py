"""Runs a cell on this rank and answers how it ended."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from IPython import get_ipython
from IPython.core.compilerop import CachingCompiler
from IPython.core.interactiveshell import InteractiveShell

from nbmn.engine.lines import cell_filename, cell_label, failing_line
from nbmn.engine.reporter import reporter
from nbmn.messages import CellError, CellReply, CellRequest


class CellCompiler(CachingCompiler):
    """Compiles cells under the number the notebook shows, so that tracebacks name it."""

    label = ""

    def get_code_name(self, raw_code: str, transformed_code: str, number: int) -> str:
        return cell_filename(self.label)

    def format_code_name(self, name: str) -> tuple[str, str] | None:
        label = cell_label(name)
        return ("cell", label) if label else None


def prepare_shell(shell: InteractiveShell) -> None:
    """Make the engine's shell name cells as the notebook does, and await at top level."""
    shell.compile = CellCompiler()
    # The engine's own event loop is busy with the request, so awaiting needs another one.
    shell.loop_runner = _run_in_thread


def _run_in_thread(coroutine: Coroutine[Any, Any, Any]) -> Any:
    with ThreadPoolExecutor(1, "nbmn-await") as pool:
        return pool.submit(asyncio.run, coroutine).result()


def run_cell(request: CellRequest) -> CellReply:
    """Run one cell here. Local; never raises, whatever the user's code does."""
    line = reporter()
    shell = get_ipython()
    shell.compile.label = request.label
    line.begin(request.run)
    error: BaseException | None = None
    value: bytes | None = None
    try:
        result = shell.run_cell(request.code, store_history=False)
        error = result.error_before_exec or result.error_in_exec
        if error is None and request.keep:
            value = _pickle(result.result)
    except BaseException as failure:  # noqa: BLE001 - an interrupt between two statements, too
        error = failure
    summary = None if error is None else summarise(shell, error)
    line.end(*_status(error, summary))
    return CellReply(line.rank, summary, value)


def _status(error: BaseException | None, summary: CellError | None) -> tuple[str, str]:
    if error is None or summary is None:
        return "done", ""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", summary.where
    return "failed", f"{summary.name}: {summary.message}"


def _pickle(value: Any) -> bytes:
    import cloudpickle

    try:
        return cloudpickle.dumps(value)
    except Exception as error:
        raise TypeError(
            f"the cell ran, but its value ({type(value).__name__}) cannot be sent: {error}"
        ) from error


def summarise(shell: InteractiveShell, error: BaseException) -> CellError:
    """An exception as text."""
    kind = type(error)
    if isinstance(error, SyntaxError):
        lines = shell.SyntaxTB.structured_traceback(kind, error, [])
        where = f"cell {cell_label(error.filename or '') or error.filename} line {error.lineno}"
    else:
        trace = error.__traceback__
        lines = shell.InteractiveTB.structured_traceback(kind, error, trace, tb_offset=1)
        where = failing_line(trace)
    message = error.msg if isinstance(error, SyntaxError) else str(error)
    return CellError(kind.__name__, message, where, shell.InteractiveTB.stb2text(lines))
