"""A run's place under its cell: the ranks' output, and a live board once they report."""

from __future__ import annotations

import importlib
import threading
import time
from collections.abc import Sequence
from functools import partial

from nbmn.cluster import Session
from nbmn.cluster.area import Area, make_area
from nbmn.cluster.live_line import LiveLine, live_line
from nbmn.cluster.output import RankOutput
from nbmn.cluster.whereabouts import where
from nbmn.dashboard import LiveBoard
from nbmn.debug.stacks import fold, render_html
from nbmn.records import Record, RunEnded, RunStarted, Said, Step

LAST_RECORDS = 1.0
"""Seconds to wait for the last records of a run that has ended."""


class RunArea:
    """Output as :class:`nbmn.cluster.area.Area` shows it, with a board on top when there is data.

    Records arrive in the listener's thread; the board is displayed by whoever
    watches the run, so that it lands under the right cell. In a terminal it is a line,
    which is left alone from :meth:`release` on, when the person types again.
    """

    def __init__(
        self,
        session: Session,
        run: str,
        ranks: Sequence[int],
        output: Area,
        line: LiveLine | None = None,
    ) -> None:
        self._session = session
        self._run = run
        self._ranks = tuple(ranks)
        self._output = output
        self._line = line
        self._noticed = False
        self._waiting: list[Record] = []
        self._board: LiveBoard | None = None
        self._ended: set[int] = set()
        self._news = threading.Condition()
        session.listener.subscribe(self._receive)

    def _receive(self, records: list[Record]) -> None:
        mine = [
            record for record in records if record.run == self._run and not isinstance(record, Said)
        ]
        if not mine:
            return
        with self._news:
            if self._board is not None:
                self._board.feed(mine)
            else:
                self._waiting += mine
            self._ended.update(record.rank for record in mine if isinstance(record, RunEnded))
            self._news.notify_all()

    def update(self, outputs: Sequence[RankOutput], notice: str = "") -> None:
        self._show_board()
        if self._line is not None and bool(notice) != self._noticed:
            self._noticed = bool(notice)
            self._line.erase()
        self._output.update(outputs, notice)
        if self._line is not None and self._board is not None:
            self._line.show(self._board.line)

    def release(self) -> None:
        """The cell is waited for no more."""
        if self._line is not None:
            self._line.close()

    def finish(
        self,
        outputs: Sequence[RankOutput],
        status: str,
        reported: Sequence[int] = (),
        notice: str = "",
    ) -> None:
        with self._news:
            self._news.wait_for(lambda: self._ended >= set(reported), LAST_RECORDS)
        self._show_board()
        self.release()
        self._session.listener.unsubscribe(self._receive)
        if self._board is not None:
            self._board.feed(self._gone())
            self._board.finish(status)
        self._output.finish(outputs, status, notice=notice)

    def _gone(self) -> list[RunEnded]:
        """Ranks that have ended altogether could not tell of it."""
        now = time.time()
        return [
            RunEnded(rank, self._run, now, fate.how, fate.detail)
            for rank, fate in self._session.fates().items()
        ]

    def _show_board(self) -> None:
        with self._news:
            if self._board is not None:
                return
            if not any(isinstance(record, (RunStarted, Step)) for record in self._waiting):
                # These open no board; the newest of each rank and kind is enough.
                newest = {(record.rank, type(record)): record for record in self._waiting}
                self._waiting = list(newest.values())
                return
            board = LiveBoard(
                size=self._session.size,
                run=self._run,
                ranks=self._ranks,
                where=partial(_stacks, self._session),
            )
            board.feed(self._waiting)
            self._waiting = []
            self._board = board
        board.show()


def _stacks(session: Session) -> str:
    """What ``%mn_where`` shows: also of ranks that do not take part, but may be waited for."""
    return render_html(fold(where(session, range(session.size))))


def load_ahead() -> None:
    """Load what the first board needs, in a thread.

    Bokeh takes a second. Once ranks have started, a person reads and types, or the
    next cell keeps the ranks busy and not this process.
    """

    def load() -> None:
        for module in ("nbmn.dashboard.widget", "nbmn.dashboard.figures"):
            importlib.import_module(module)

    threading.Thread(target=load, name="nbmn-load", daemon=True).start()


def make_run_area(session: Session, run: str, ranks: Sequence[int], alone: bool = True) -> RunArea:
    """The place under the current cell.

    Parameters
    ----------
    alone
        Nobody else writes there until the run has ended: neither the person nor the notebook.
    """
    return RunArea(session, run, ranks, make_area(), live_line() if alone else None)
