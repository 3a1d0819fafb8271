"""A run's place under its cell: the ranks' output, and a live board once they report."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from nbmn.magics.context import Context

from nbmn.cluster import Session
from nbmn.cluster.area import Area, make_area
from nbmn.cluster.output import RankOutput
from nbmn.dashboard import LiveBoard
from nbmn.records import Heartbeat, Record, RunStarted, Step


class RunArea:
    """Output as :class:`nbmn.cluster.area.Area` shows it, with a board on top when there is data.

    Records arrive in the listener's thread; the board is displayed by whoever
    watches the run, so that it lands under the right cell.
    """

    def __init__(self, session: Session, ranks: Sequence[int], output: Area) -> None:
        self._session = session
        self._ranks = tuple(ranks)
        self._output = output
        self._run = ""
        self._waiting: list[Record] = []
        self._board: LiveBoard | None = None
        self._lock = threading.Lock()
        self._failed = False
        self._interrupted = False
        session.listener.subscribe(self._receive)

    def follow(self, run: str) -> None:
        """Name the run whose records belong here."""
        with self._lock:
            self._run = run
            self._waiting = [record for record in self._waiting if record.run == run]

    def _receive(self, records: list[Record]) -> None:
        with self._lock:
            mine = [r for r in records if not self._run or r.run in (self._run, "")]
            if self._board is not None:
                self._board.feed(mine)
            else:
                self._waiting += mine

    def update(self, outputs: Sequence[RankOutput]) -> None:
        self._show_board()
        self._output.update(outputs)

    def finish(self, outputs: Sequence[RankOutput], status: str) -> None:
        self._show_board()
        self._session.listener.unsubscribe(self._receive)
        if self._board is not None:
            self._board.finish(status)
        self._output.finish(outputs, status)

    def _show_board(self) -> None:
        with self._lock:
            news = any(
                isinstance(r, (RunStarted, Step)) and r.run == self._run for r in self._waiting
            )
            if self._board is not None or not news:
                # Heartbeats alone open no board; the newest of each rank is enough.
                if not news:
                    latest = {r.rank: r for r in self._waiting if isinstance(r, Heartbeat)}
                    self._waiting = list(latest.values())
                return
            board = LiveBoard(size=self._session.size, run=self._run, ranks=self._ranks)
            board.feed(self._waiting)
            self._waiting = []
            self._board = board
        board.show()


def make_run_area(context: Context, session: Session, ranks: Sequence[int]) -> RunArea:
    """The place under the current cell."""
    return RunArea(session, ranks, make_area(context.shell))
