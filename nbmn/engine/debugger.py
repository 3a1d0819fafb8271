"""A debugger's prompt on this rank, typed in the notebook."""

from __future__ import annotations

import bdb
import code
import contextlib
import inspect
import pdb
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import AbstractContextManager
from types import CodeType, FrameType
from typing import Any

from IPython.core.debugger import Pdb

from nbmn.compat.set_trace import redirected
from nbmn.engine.console import Console
from nbmn.engine.lines import cell_label, describe, failing_line, in_cell
from nbmn.engine.reporter import Reporter

_OURS = frozenset({"nbmn", "IPython", "ipykernel", "ipyparallel"})
"""Packages into which no step goes: they run the cell, show its value, and carry the prompt."""


class RankDebugger(Pdb):
    """IPython's debugger, confined to the user's cells and what these call."""

    def __init__(
        self, completekey: str | None = None, stdin: Any = None, stdout: Any = None, **options: Any
    ) -> None:
        # The notebook's stop button must stop the cell, and not open the prompt once more.
        options["nosigint"] = True
        super().__init__(completekey, stdin or sys.stdin, stdout or sys.stdout, **options)
        self._begins = False

    def set_trace(self, frame: FrameType | None = None, **options: Any) -> None:
        self.initial_frame = frame = frame or sys._getframe(1)
        self._begins = True
        # Not IPython's method, which leads here while a cell is debugged.
        pdb.Pdb.set_trace(self, frame)
        for outer in _outside(frame):
            outer.f_trace = None

    def trace_dispatch(self, frame: FrameType, event: str, arg: Any) -> Any:
        try:
            return super().trace_dispatch(frame, event, arg)
        except bdb.BdbQuit:
            if _left(self.stdin):
                raise KeyboardInterrupt from None
            raise bdb.BdbQuit(describe(frame.f_code.co_filename, frame.f_lineno)) from None

    def stop_here(self, frame: FrameType) -> bool:
        return _is_users(frame) and super().stop_here(frame)

    def user_call(self, frame: FrameType, argument_list: None) -> None:
        # Each statement of a cell is a call of its own, which says nothing to a person.
        if not _is_statement(frame):
            super().user_call(frame, argument_list)

    def user_return(self, frame: FrameType, return_value: Any) -> None:
        if not _is_statement(frame):
            super().user_return(frame, return_value)
        elif self._begins:  # breakpoint() was the last of the statement: no other place follows
            self.interaction(frame, None)

    def user_exception(self, frame: FrameType, exc_info: Any) -> None:
        super().user_exception(frame, exc_info)
        if _is_statement(frame):
            frame.f_globals.pop("__exception__", None)  # pdb's; these locals are the namespace

    def get_stack(self, *args: Any, **kwargs: Any) -> tuple[list[tuple[FrameType, int]], int]:
        """The frames from the user's first cell on, at the innermost that is not nbmn's."""
        stack, index = super().get_stack(*args, **kwargs)
        first = next((i for i, (frame, _) in enumerate(stack) if _is_cell(frame.f_code)), 0)
        index -= first
        while index > 0 and self._hidden_predicate(stack[first + index][0]):
            index -= 1
        return stack[first:], max(index, 0)

    def _hidden_predicate(self, frame: FrameType) -> Any:
        return _package(frame) == "nbmn" or super()._hidden_predicate(frame)

    def interaction(self, frame: FrameType | None, what: Any) -> None:
        self._begins = False
        with _turn(self.stdin):
            super().interaction(frame, what)
        if _left(self.stdin):
            self.set_quit()

    def onecmd(self, line: str) -> Any:
        try:
            return super().onecmd(line)
        except SystemExit:  # exit() and the like, which IPython's lets pass
            return self.do_quit("")

    def _cmdloop(self) -> None:
        try:
            self.cmdloop()
        except KeyboardInterrupt:
            self.set_quit()

    def precmd(self, line: str) -> str:
        if line.endswith("\t"):
            line = f"complete {line[:-1]}"
        return super().precmd(line)

    def do_complete(self, arg: str) -> None:
        """complete TEXT
        List the names that TEXT can be continued to: variables, or attributes
        after a dot.  A line that ends with a tab does the same.
        """
        owner, dot, start = arg.split(" ")[-1].rpartition(".")
        if dot:
            try:
                names = dir(self._getval(owner))
            except Exception:  # noqa: BLE001 - the user's code; pdb has told the error
                return
        else:
            frame = self.curframe
            names = [*self._get_frame_locals(frame), *frame.f_globals, *frame.f_builtins]
        found = sorted({name for name in map(str, names) if name.startswith(start)})
        self.columnize([owner + dot + name for name in found] or ["(nothing)"])

    def do_run(self, arg: str) -> None:
        """run, restart
        Not here: a rank has no program that could begin anew.
        """
        self.error("a rank has no program to begin anew; run the cell again with %%mn --debug RANK")

    do_restart = do_run

    def do_debug(self, arg: str) -> None:
        trace = sys.gettrace()
        try:
            super().do_debug(arg)
        except Exception:  # noqa: BLE001 - the user's code
            self._error_exc()
        finally:
            sys.settrace(trace)

    do_debug.__doc__ = Pdb.do_debug.__doc__

    def do_interact(self, arg: str) -> None:
        """interact
        Start an interpreter whose names are those of this frame; exit() leads
        back.  What is assigned there does not reach the frame.
        """
        names = {**self.curframe.f_globals, **self._get_frame_locals(self.curframe)}
        with contextlib.suppress(SystemExit):
            _Interpreter(names, self.stdin, self.stdout).interact(
                "interactive; exit() leads back to the debugger", ""
            )


class _Interpreter(code.InteractiveConsole):
    """Python's own, with the given streams; leaves the last exception in place."""

    def __init__(self, names: dict[str, Any], stdin: Any, stdout: Any) -> None:
        super().__init__(names, "<interactive>")
        self._stdin, self._stdout = stdin, stdout

    def raw_input(self, prompt: str = "") -> str:
        # IPython's are those of its cells.
        self.write(">>> " if prompt == sys.ps1 else "... ")
        line = self._stdin.readline()
        if not line:
            raise EOFError
        return line.rstrip("\n")

    def write(self, data: str) -> None:
        self._stdout.write(data)

    def runcode(self, code: CodeType) -> None:
        before, sys.displayhook = sys.displayhook, self._display
        try:
            super().runcode(code)
        finally:
            sys.displayhook = before

    def _display(self, value: Any) -> None:
        if value is not None:
            self.write(f"{value!r}\n")

    def showtraceback(self) -> None:
        kind, error, trace = sys.exc_info()
        inner = trace.tb_next if trace is not None else None
        self.write("".join(traceback.format_exception(kind, error, inner)))

    def showsyntaxerror(self, filename: str | None = None, **options: Any) -> None:
        self.write(traceback.format_exc(limit=0))


@contextlib.contextmanager
def breakpoints(line: Reporter, rank: int) -> Iterator[None]:
    """Open the prompt at each ``breakpoint()``, if this is that rank; else skip them. Local."""
    if line.rank != rank:
        with redirected(lambda frame: None, Pdb):
            yield
        return
    console = Console(line)
    with console.connected():
        threads = _Threads(console, rank)
        trace = sys.gettrace()
        try:
            with redirected(threads.enter, Pdb):
                yield
        finally:
            sys.settrace(trace)
            threads.clear_all_breaks()


class _Threads:
    """A debugger for each thread that comes to a breakpoint: they step by themselves."""

    def __init__(self, console: Console, rank: int) -> None:
        self._console = console
        self._rank = rank
        self._debuggers: dict[threading.Thread, RankDebugger] = {}

    def enter(self, frame: FrameType) -> None:
        with self._console.turn():
            if not self._debuggers:
                place = describe(frame.f_code.co_filename, frame.f_lineno)
                self._console.write(
                    f"rank {self._rank} stands at {place}; other ranks wait where they need it\n"
                    "c goes on, q fails the cell, h lists the commands\n"
                )
            thread = threading.current_thread()
            debugger = self._debuggers.setdefault(thread, RankDebugger())
        debugger.set_trace(frame)

    def clear_all_breaks(self) -> None:
        for debugger in self._debuggers.values():
            debugger.clear_all_breaks()


def post_mortem(line: Reporter) -> None:
    """Open the prompt where this rank's last exception was raised. Local."""
    error = getattr(sys, "last_value", None)
    where = failing_line(error.__traceback__) if error is not None else ""
    console = Console(line, where)
    with console.connected():
        if error is None:
            console.write(f"rank {line.rank} has raised no exception that could be looked at\n")
        elif not in_cell(error.__traceback__):
            console.write(f"rank {line.rank} ran nothing: {type(error).__name__}: {error}\n")
        else:
            stopped = isinstance(error, KeyboardInterrupt)
            what = "was interrupted" if stopped else f"raised {type(error).__name__}"
            console.write(f"rank {line.rank} {what} at {where}; q leaves, h lists the commands\n")
            debugger = RankDebugger()
            debugger.reset()
            debugger.interaction(None, error)


def _left(stdin: Any) -> bool:
    console = getattr(stdin, "console", None)
    return console is not None and console.closed


def _turn(stdin: Any) -> AbstractContextManager[Any]:
    console = getattr(stdin, "console", None)
    return console.turn() if console is not None else contextlib.nullcontext()


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__") or "").partition(".")[0]


def _is_cell(code: CodeType) -> bool:
    return cell_label(code.co_filename) is not None


def _is_statement(frame: FrameType) -> bool:
    """Whether it is a statement of a cell; IPython runs them one by one."""
    return _is_cell(frame.f_code) and not frame.f_code.co_flags & inspect.CO_NEWLOCALS


def _is_users(frame: FrameType) -> bool:
    """Whether it is a cell's, or was called by one."""
    outer: FrameType | None = frame
    while outer is not None and _package(outer) not in _OURS:
        if _is_cell(outer.f_code):
            return True
        outer = outer.f_back
    return False


def _outside(frame: FrameType) -> list[FrameType]:
    """Frames that have called the cell."""
    frames = [frame]
    while (outer := frames[-1].f_back) is not None:
        frames.append(outer)
    cells = [i for i, each in enumerate(frames) if _is_cell(each.f_code)]
    return frames[cells[-1] + 1 :] if cells else []
