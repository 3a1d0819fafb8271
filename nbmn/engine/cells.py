"""Runs a cell on this rank and answers how it ended."""

from __future__ import annotations

import asyncio
import bdb
import io
import os
import sys
import warnings
from collections.abc import Coroutine
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from IPython import get_ipython
from IPython.core.compilerop import CachingCompiler
from IPython.core.error import TryNext
from IPython.core.interactiveshell import InteractiveShell

from nbmn.engine.guard import guarded
from nbmn.engine.lines import cell_filename, cell_label, failing_line
from nbmn.engine.out_of_memory import alike, explain, wanted_memory
from nbmn.engine.refusal import Refusal
from nbmn.engine.reporter import Reporter, reporter
from nbmn.engine.tracebacks import users_part
from nbmn.messages import CellError, CellReply, CellRequest
from nbmn.phases import phases

LONGEST_MESSAGE = 2000
"""Characters of an exception's message that travel; its traceback has all of it."""


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
    shell.loop_runner = _run_coroutine
    # The notebook shows a failure once, for all ranks; IPython would format it here as well,
    # and let an exception whose __str__ raises take the place of the user's.
    shell.set_custom_exc((BaseException,), _remember)
    warnings.filterwarnings("ignore", "To exit: use")
    sys.stdin = _NoKeyboard()
    sys.breakpointhook = _no_breakpoint
    shell.set_hook("show_in_pager", _show_at_prompt, 10)
    # IPython's own would end the engine, and with it all other ranks.
    shell.user_ns["exit"] = shell.user_ns["quit"] = _exit


def _remember(shell: Any, kind: Any, error: Any, trace: Any, tb_offset: int | None = None) -> None:
    """Keep an exception where ``%debug`` and :mod:`pdb` look for the last one."""
    sys.last_type, sys.last_value, sys.last_traceback = kind, error, trace
    sys.last_exc = error  # type: ignore[attr-defined] # from Python 3.12


class _NoKeyboard(io.TextIOBase):
    """Standard input of a rank."""

    def readline(self, size: int = -1) -> str:  # type: ignore[override]
        raise OSError(
            "a rank has no keyboard: ask in a cell of the notebook and %mn_push the answer; "
            "to debug a rank, run the cell with %%mn --debug RANK"
        )

    read = readline


class BreakpointError(Refusal):
    """A breakpoint in a cell that opens no prompt."""


def _no_breakpoint(*args: Any, **kwargs: Any) -> None:
    if os.environ.get("PYTHONBREAKPOINT") == "0":
        return
    raise BreakpointError(
        "breakpoint() on a rank needs a prompt: run the cell with %%mn --debug RANK; other ranks "
        "pass their breakpoints by"
    )


def _show_at_prompt(shell: Any, data: Any, start: int = 0, screen_lines: int = 0) -> None:
    """What a pager would show, such as ``name?``, where a debugger's commands are answered."""
    if reporter().console is None:
        raise TryNext
    print(data.get("text/plain", "") if isinstance(data, dict) else data)


def _exit(code: object = None) -> None:
    """End the cell on this rank; the rank itself goes on."""
    raise SystemExit if code is None else SystemExit(code)


def _run_coroutine(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Await in this thread, where interrupts arrive and the GPU is bound.

    The engine's own loop is below us on the stack, busy with the request.
    """
    outer = asyncio._get_running_loop()
    asyncio._set_running_loop(None)
    try:
        with asyncio.Runner() as runner:
            return runner.run(coroutine)
    finally:
        asyncio._set_running_loop(outer)


def run_cell(request: CellRequest) -> CellReply:
    """Run one cell here. Local; never raises, whatever the user's code does."""
    line = reporter()
    shell = get_ipython()

    def work() -> tuple[bytes | None, BaseException | None]:
        shell.compile.label = request.label
        phases().close_all()
        if request.post_mortem:
            from nbmn.engine.debugger import post_mortem

            return None, post_mortem(line)
        with _breakpoints(line, request):
            result = shell.run_cell(request.code, store_history=False)
        failure = result.error_before_exec or result.error_in_exec
        if failure is not None:
            return None, failure  # raised again, its traceback would begin in our lines
        return (_pickle(result.result) if request.keep else None), None

    answer, error = guarded(request.run, work)
    value = None
    if answer is not None:
        value, error = answer
    summary = None if error is None else summarise(shell, error)
    reported = line.has_reported
    line.end(*_status(error, summary))
    return CellReply(line.rank, summary, value, reported)


def _breakpoints(line: Reporter, request: CellRequest) -> AbstractContextManager[object]:
    if request.debug is None:
        return nullcontext()
    from nbmn.engine.debugger import breakpoints  # takes a while to load, and is seldom used

    return breakpoints(line, request.debug)


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
    """An exception as text; never raises, whatever the exception's own methods do."""
    kind = type(error)
    if isinstance(error, Refusal):
        return CellError(kind.__name__, message_of(error), failing_line(error.__traceback__))
    if isinstance(error, bdb.BdbQuit):
        where = str(error) or failing_line(error.__traceback__)
        return CellError(kind.__name__, "the debugger was left", where)
    if isinstance(error, SyntaxError):
        where = f"cell {cell_label(error.filename or '') or error.filename} line {error.lineno}"
        message = error.msg
    else:
        where = failing_line(error.__traceback__)
        message = message_of(error)
    if len(message) > LONGEST_MESSAGE:
        message = f"{message[:LONGEST_MESSAGE]} … ({len(message)} characters)"
    trace = _format(shell, error)  # first: an account lets go of the variables on the way
    if not wanted_memory(error):
        return CellError(kind.__name__, message, where, trace)
    return CellError(kind.__name__, alike(message), where, trace, _account(shell, error))


def _account(shell: InteractiveShell, error: BaseException) -> str:
    rank = reporter().rank
    try:
        return explain(error, shell.user_ns, rank)
    except Exception as second:  # noqa: BLE001 - the device may answer no more
        return f"rank {rank}: what held the memory cannot be told: {message_of(second)}"


def message_of(error: BaseException) -> str:
    """What ``str`` of an exception gives, or why it gives nothing."""
    try:
        return str(error)
    except Exception as second:  # noqa: BLE001 - the user's own __str__
        return f"<its message cannot be shown: {type(second).__name__}>"


def _format(shell: InteractiveShell, error: BaseException) -> str:
    kind, trace = type(error), users_part(error)
    try:
        if isinstance(error, SyntaxError):
            lines = shell.SyntaxTB.structured_traceback(kind, error, [])
        else:
            lines = shell.InteractiveTB.structured_traceback(kind, error, trace, tb_offset=0)
        return shell.InteractiveTB.stb2text(lines)
    except Exception as second:  # noqa: BLE001 - formatting calls the user's code
        return f"(no traceback: formatting it raised {type(second).__name__})"
