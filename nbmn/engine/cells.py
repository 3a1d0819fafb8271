"""Runs a cell on this rank and answers how it ended."""

from __future__ import annotations

import asyncio
import bdb
import signal
import sys
import traceback
import warnings
from collections.abc import Coroutine, Mapping
from contextlib import AbstractContextManager, nullcontext
from types import CodeType, FrameType
from typing import Any

from IPython import get_ipython
from IPython.core.compilerop import CachingCompiler
from IPython.core.error import TryNext
from IPython.core.interactiveshell import InteractiveShell

from nbmn.engine.guard import guarded
from nbmn.engine.lines import cell_filename, cell_label, describe, failing_line, in_cell
from nbmn.engine.origins import follows_interrupt, origin
from nbmn.engine.out_of_memory import alike, explain, wanted_memory
from nbmn.engine.refusal import Refusal
from nbmn.engine.reporter import Reporter, reporter
from nbmn.engine.stand_ins import NOT_LEFT, Exit, NoKeyboard, no_breakpoint
from nbmn.engine.streams import restore_streams, streams
from nbmn.engine.tracebacks import users_part
from nbmn.engine.unheard import Unheard
from nbmn.messages import Averaged, CellError, CellReply, CellRequest
from nbmn.phases import phases

LONGEST_MESSAGE = 2000
"""Characters of an exception's message, and of a line of its traceback, that travel."""
LONGEST_TRACEBACK = 100_000
"""Characters of a traceback that travel."""


class CellCompiler(CachingCompiler):
    """Compiles cells under the number the notebook shows, so that tracebacks name it."""

    label = ""

    def get_code_name(self, raw_code: str, transformed_code: str, number: int) -> str:
        return cell_filename(self.label)

    def cache(self, transformed_code: str, number: int = 0, raw_code: str | None = None) -> str:
        if raw_code is not None and raw_code.startswith("%%"):
            # What is a line of the cell is one of the magic's body, see magics' numbered().
            transformed_code = raw_code.partition("\n")[2]
        return super().cache(transformed_code, number, raw_code)

    def __call__(self, source: Any, filename: str, symbol: str, **options: Any) -> CodeType:
        if filename.startswith("<timed "):  # of %%time
            filename = cell_filename(self.label)
        return super().__call__(source, filename, symbol, **options)

    def format_code_name(self, name: str) -> tuple[str, str] | None:
        label = cell_label(name)
        return ("cell", label) if label else None


def prepare_shell(shell: InteractiveShell) -> None:
    """Make the engine's shell name cells as the notebook does, and await at top level."""
    streams()
    shell.compile = CellCompiler()
    shell.loop_runner = _run_coroutine
    # The notebook shows a failure once, for all ranks; IPython would format it here as well,
    # and let an exception whose __str__ raises take the place of the user's.
    shell.set_custom_exc((BaseException,), _remember)
    warnings.filterwarnings("ignore", "To exit: use")
    sys.stdin = NoKeyboard()
    sys.breakpointhook = no_breakpoint
    sys.unraisablehook = Unheard(sys.unraisablehook)
    shell.set_hook("show_in_pager", _show_at_prompt, 10)
    # IPython's own would end the engine, and with it all other ranks.
    shell.user_ns["exit"] = shell.user_ns["quit"] = Exit()


def _remember(shell: Any, kind: Any, error: Any, trace: Any, tb_offset: int | None = None) -> None:
    """Keep an exception where ``%debug`` and :mod:`pdb` look for the last one.

    IPython calls this where it would show it; a magic within the cell, such as ``%%capture``, may
    then go on as if nothing had happened.
    """
    sys.last_type, sys.last_value, sys.last_traceback = kind, error, trace
    sys.last_exc = error  # type: ignore[attr-defined] # from Python 3.12


def _show_at_prompt(shell: Any, data: Any, start: int = 0, screen_lines: int = 0) -> None:
    """What a pager would show, such as ``name?``, where a debugger's commands are answered."""
    if reporter().console is None:
        raise TryNext
    print(data.get("text/plain", "") if isinstance(data, dict) else data)


def _run_coroutine(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Await in this thread, where interrupts arrive and the GPU is bound.

    The engine's own loop is below us on the stack, busy with the request.
    """
    outer = asyncio._get_running_loop()
    asyncio._set_running_loop(None)
    try:
        with asyncio.Runner() as runner:
            return runner.run(_interruptible(coroutine))
    finally:
        asyncio._set_running_loop(outer)


async def _interruptible(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Await, and raise KeyboardInterrupt at once in code that does not.

    asyncio only cancels at the first interrupt, which is seen at the next ``await``.
    """
    cancel = signal.getsignal(signal.SIGINT)

    def interrupt(number: int, frame: FrameType | None) -> None:
        if asyncio.current_task() is not None or not callable(cancel):
            raise KeyboardInterrupt
        cancel(number, frame)

    signal.signal(signal.SIGINT, interrupt)
    try:
        return await coroutine
    finally:
        signal.signal(signal.SIGINT, cancel)


def run_cell(request: CellRequest) -> CellReply:
    """Run one cell here. Local; never raises, whatever the user's code does."""
    line = reporter()
    shell = get_ipython()
    before = _averagings()

    def work() -> tuple[bytes | None, CellError | None]:
        try:
            value, error = _run(line, shell, request)
        except BaseException as raised:  # noqa: BLE001 - handed to the notebook
            value, error = None, raised
        # Here, where it can be interrupted, since it calls the user's __str__.
        return value, None if error is None else summarise(shell, error)

    answer, late = guarded(request.run, work)
    value, summary = answer or (None, bare(late or KeyboardInterrupt()))
    restore_streams()
    reported = line.has_reported
    line.end(*_status(summary))
    return CellReply(line.rank, summary, value, reported, _broken(), _averaged(line, before))


def _run(
    line: Reporter, shell: InteractiveShell, request: CellRequest
) -> tuple[bytes | None, BaseException | None]:
    """The value and the error; raised again, the latter's traceback would begin in our lines."""
    shell.compile.label = request.label
    phases().close_all()
    if request.post_mortem:
        from nbmn.engine.debugger import post_mortem

        return None, post_mortem(line)
    before = getattr(sys, "last_value", None)
    with _breakpoints(line, request):
        result = shell.run_cell(request.code, store_history=False)
    failure = result.error_before_exec or result.error_in_exec
    if failure is None and request.code.lstrip().startswith("%%"):
        last = getattr(sys, "last_value", None)
        failure = None if last is before else last
    if failure is not None:
        return None, failure
    return (_pickle(result.result) if request.keep else None), None


def _averaged(
    line: Reporter, before: Mapping[int, tuple[tuple[int, ...], int]]
) -> dict[int, Averaged]:
    """What was begun in the background, and what of it in this cell."""
    if line.lookout is not None and line.lookout.threads():
        return {}
    return {
        code: Averaged(members, count - before.get(code, ((), 0))[1], count)
        for code, (members, count) in _averagings().items()
    }


def _averagings() -> dict[int, tuple[tuple[int, ...], int]]:
    from nbmn.communicators import world

    return world().averagings()


def _broken() -> bool:
    """Whether a communicator that is held here is of no use without a renewal."""
    from mpi4py import MPI

    from nbmn.communicators import world

    return MPI.Is_finalized() or not world().in_order()


def _breakpoints(line: Reporter, request: CellRequest) -> AbstractContextManager[object]:
    if request.debug is None:
        return nullcontext()
    from nbmn.engine.debugger import breakpoints  # takes a while to load, and is seldom used

    return breakpoints(line, request.debug)


def _status(summary: CellError | None) -> tuple[str, str]:
    if summary is None:
        return "done", ""
    if summary.name == "KeyboardInterrupt":
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
    try:
        return _summarise(shell, error)
    except BaseException as second:  # noqa: BLE001 - the user's own methods, or an interrupt
        return bare(error, f"<its message cannot be shown: {type(second).__name__}>")


def bare(error: BaseException, message: str = "") -> CellError:
    """An exception as text without a call of any method of its own."""
    where = failing_line(error.__traceback__)
    name = type(error).__name__
    return CellError(name, message, where, _frames(error) + name)


def _frames(error: BaseException) -> str:
    return "".join(traceback.format_tb(users_part(error)))


def _summarise(shell: InteractiveShell, error: BaseException) -> CellError:
    kind = type(error)
    if isinstance(error, Refusal):
        return CellError(kind.__name__, message_of(error), failing_line(error.__traceback__))
    if isinstance(error, bdb.BdbQuit):
        where = str(error) or failing_line(error.__traceback__)
        return CellError(kind.__name__, "the debugger was left", where)
    first = origin(error)
    message = _cut(_message(error))
    trace = _format(shell, error)  # first: an account lets go of the variables on the way
    short = wanted_memory(error)
    return CellError(
        kind.__name__,
        alike(message) if short else message,
        _place(error),
        trace,
        _account(shell, error) if short else "",
        None
        if first is None
        else CellError(type(first).__name__, _cut(_message(first)), _place(first)),
        follows_interrupt(error),
        in_cell(error.__traceback__),
    )


def _account(shell: InteractiveShell, error: BaseException) -> str:
    rank = reporter().rank
    try:
        return explain(error, shell.user_ns, rank)
    except Exception as second:  # noqa: BLE001 - the device may answer no more
        return f"rank {rank}: what held the memory cannot be told: {message_of(second)}"


def _place(error: BaseException) -> str:
    if isinstance(error, SyntaxError) and cell_label(error.filename or ""):
        return describe(error.filename or "", error.lineno or 0)
    return failing_line(error.__traceback__)


def _message(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return "; ".join(part for part in (message_of(error), NOT_LEFT) if part)
    if not isinstance(error, SyntaxError):
        return message_of(error)
    if cell_label(error.filename or "") or not (error.filename and error.lineno):
        return str(error.msg)
    return f"{error.msg} ({describe(error.filename, error.lineno)})"  # where no line of a cell is


def _cut(text: str) -> str:
    if len(text) <= LONGEST_MESSAGE:
        return text
    return f"{text[:LONGEST_MESSAGE]} … ({len(text)} characters)"


def message_of(error: BaseException) -> str:
    """What ``str`` of an exception gives, or why it gives nothing.

    Raises
    ------
    KeyboardInterrupt
        It was interrupted.
    """
    try:
        return str(error)
    except KeyboardInterrupt:
        raise
    except BaseException as second:  # noqa: BLE001 - the user's own __str__
        return f"<its message cannot be shown: {type(second).__name__}>"


def _format(shell: InteractiveShell, error: BaseException) -> str:
    kind, trace = type(error), users_part(error)
    try:
        if isinstance(error, SyntaxError):
            lines = shell.SyntaxTB.structured_traceback(kind, error, [])
        else:
            lines = shell.InteractiveTB.structured_traceback(kind, error, trace, tb_offset=0)
        text = shell.InteractiveTB.stb2text(lines)
    except KeyboardInterrupt:
        raise
    except BaseException as second:  # noqa: BLE001 - formatting calls the user's code
        return f"{_frames(error)}(formatting the rest raised {type(second).__name__})"
    return shortened(text)


def shortened(text: str) -> str:
    """A traceback whose messages are long, without the most of these."""
    if len(text) > LONGEST_TRACEBACK:
        half = LONGEST_TRACEBACK // 2
        text = f"{text[:half]}\n… ({len(text)} characters)\n{text[-half:]}"
    return "\n".join(map(_cut, text.split("\n")))
