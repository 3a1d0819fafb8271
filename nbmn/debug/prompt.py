"""The notebook's end of a prompt on a rank: shows what it prints, asks, and sends the answer."""

from __future__ import annotations

import _thread
import contextlib
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from nbmn.records import Record, Said

TICK = 0.1
"""Seconds that the rest of a line has to arrive, before its beginning is shown."""
MOST = 1000
"""Pieces of text that are shown in one go."""
LAST_WORDS = 1.0
"""Seconds that a rank's last words have to arrive, when the run has ended."""


class Line(Protocol):
    """To the ranks; as :class:`nbmn.cluster.listener.Listener`."""

    def subscribe(self, subscriber: Callable[[list[Record]], None]) -> None: ...
    def unsubscribe(self, subscriber: Callable[[list[Record]], None]) -> None: ...
    def answer(self, rank: int, run: str, question: int, text: str) -> None: ...


class Run(Protocol):
    """A cell on ranks; as :class:`nbmn.cluster.cells.CellRun`."""

    def done(self) -> bool: ...


class Prompt:
    """Makes the notebook the console of one rank in one run; made before the run begins.

    It asks with ``input()``, which every front end of Jupyter offers, and a terminal; or with
    what takes its place.
    """

    def __init__(self, line: Line, rank: int, run: str, ask: Callable[[str], str] = input) -> None:
        self._line = line
        self._rank = rank
        self._run = run
        self._input = ask
        self._news: queue.SimpleQueue[Said] = queue.SimpleQueue()
        line.subscribe(self._receive)

    def _receive(self, records: Sequence[Record]) -> None:
        for record in records:
            if isinstance(record, Said) and (record.rank, record.run) == (self._rank, self._run):
                self._news.put(record)

    def close(self) -> None:
        """Listen no more."""
        self._line.unsubscribe(self._receive)

    def hold(self, run: Run) -> None:
        """Be the rank's console until it has ended. In the main thread.

        Raises
        ------
        KeyboardInterrupt
            The person pressed the stop button.
        Exception
            What ``input`` raises where the front end has none.
        """
        begun = ""  # of a line, which may be a prompt
        patience = LAST_WORDS
        while patience > 0:
            text, last = self._hear()
            above, newline, rest = (begun + text).rpartition("\n")
            _show(above + newline)
            begun = rest
            if last is not None and last.question:
                answer = self._ask(begun, run)
                begun = ""
                if answer is None:
                    break
                self._line.answer(self._rank, self._run, last.question, answer)
            elif last is not None and last.last:
                break
            elif not text:
                _show(begun)
                begun = ""
                patience -= TICK if run.done() else 0
        _show(begun)

    def _hear(self) -> tuple[str, Said | None]:
        """What the rank says, up to a question or the end, if that has come; waits a moment."""
        pieces: list[str] = []
        with contextlib.suppress(queue.Empty):
            wait = TICK
            while len(pieces) < MOST:
                said = self._news.get(timeout=wait)
                pieces.append(said.text)
                if said.question or said.last:
                    return "".join(pieces), said
                wait = 0.0
        return "".join(pieces), None

    def _ask(self, prompt: str, run: Run) -> str | None:
        """A line with its newline; empty at the end of input, None if the run ends meanwhile."""
        over = _Watch(run)
        try:
            with over:
                return f"{self._input(prompt)}\n"
        except EOFError:
            return ""
        except KeyboardInterrupt:
            if over.pressed:
                return None
            raise


class _Watch:
    """Interrupts the main thread when a run ends, or its rank dies, while the person is asked."""

    def __init__(self, run: Run) -> None:
        self.pressed = False
        self._run = run
        self._lock = threading.Lock()
        self._left = threading.Event()

    def __enter__(self) -> None:
        threading.Thread(target=self._look, name="nbmn-prompt", daemon=True).start()

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._left.set()

    def _look(self) -> None:
        while not self._left.wait(TICK):
            if self._run.done():
                with self._lock:  # the main thread is still inside: it cannot leave without
                    if not self._left.is_set():
                        self.pressed = True
                        _thread.interrupt_main()
                return


def _show(text: str) -> None:
    if text:
        print(text, end="", flush=True)
