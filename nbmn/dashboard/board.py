"""The live board of one run: takes records in, pushes to the page from a thread."""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from nbmn.compat.busy_kernel import answer_while_busy
from nbmn.dashboard.encoding import MAX_CHARTS, encode_frame, encode_state
from nbmn.dashboard.model import RunModel
from nbmn.dashboard.snapshot import Snapshot
from nbmn.dashboard.static_view import html, plain
from nbmn.front_end import front_end
from nbmn.records import Record

__all__ = ["LiveBoard"]

_PERIOD = 0.22
_BYTES_PER_SECOND = 1.5e6
# Renewing the static half makes front ends ask for a new view: soon at first, then seldom.
_STATIC_PERIODS = (2.0, 20.0)
_WIDGET = "application/vnd.jupyter.widget-view+json"
_STATUSES = ("done", "failed", "interrupted")


class LiveBoard:
    """Charts, progress and a lamp per rank, live in the current cell.

    Parameters
    ----------
    size : int
        Number of ranks of the cluster.
    run : str
        Records of other runs are ignored.
    title : str
        Shown above the charts until a rank sends a title of its own.
    ranks : iterable of int or None
        MPI ranks that take part; all ``size`` by default.
    where : callable or None
        Returns HTML that says where the ranks are at this moment, for a button on the board;
        called in a thread of the board's. Without it there is no button.

    Notes
    -----
    All methods may be called from any thread, :meth:`show` in the context of the cell
    (:mod:`contextvars`) under which the board shall appear.
    """

    def __init__(
        self,
        size: int,
        run: str,
        title: str = "",
        ranks: Iterable[int] | None = None,
        where: Callable[[], str] | None = None,
    ) -> None:
        taking_part = tuple(range(size)) if ranks is None else tuple(sorted(set(ranks)))
        if not taking_part or taking_part[0] < 0 or taking_part[-1] >= size:
            raise ValueError(f"ranks must be some of 0 … {size - 1}, not {taking_part}")
        self.run = run
        self.ranks = taking_part
        self._where = where
        self._model = RunModel(taking_part, time.time(), title=title)
        self._inbox: deque[tuple[float, list[Record]]] = deque()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._page: _Page | None = None
        self._finished = False

    def feed(self, records: Iterable[Record]) -> None:
        """Take records in. Thread-safe; only queues them, so it never holds up a listener."""
        self._inbox.append((time.time(), list(records)))

    def show(self) -> None:
        """Display the board in the current cell.

        In a terminal nothing is displayed until :meth:`finish` prints a summary; :meth:`line`
        tells of the time before.
        """
        if self._page is not None:
            raise RuntimeError("this board is shown already")
        if not front_end().redraws:
            return
        from IPython import get_ipython

        kernel = get_ipython().kernel
        answer_while_busy(kernel)
        self._page = _Page(self.snapshot(), self._where, kernel)
        self._thread = threading.Thread(target=self._push, name=f"board {self.run}", daemon=True)
        self._thread.start()

    def finish(self, status: str) -> None:
        """Push what is left and leave a static picture in the place of the live board.

        Parameters
        ----------
        status : {"done", "failed", "interrupted"}
            How the run ended.
        """
        if status not in _STATUSES:
            raise ValueError(f"status must be one of {_STATUSES}, not {status!r}")
        with self._lock:
            if self._finished:
                return
            self._finished = True
        self._stop.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self._drain()
        with self._lock:
            self._model.finish(status, time.time())
        snapshot = self.snapshot()
        if self._page is not None:
            self._page.push(snapshot)
            self._page.close(snapshot)
        elif not front_end().redraws:
            print(plain(snapshot), file=sys.stdout, flush=True)

    def snapshot(self) -> Snapshot:
        """What the board shows now; records fed so far are taken in first."""
        self._drain()
        with self._lock:
            return self._model.snapshot(time.time())

    def line(self) -> str:
        """What the board shows now, in one line."""
        return plain(self.snapshot())

    def _drain(self) -> int:
        """Apply what was fed; returns the number of records."""
        taken = 0
        with self._lock:
            while self._inbox:
                arrived, records = self._inbox.popleft()
                for record in records:
                    if record.run == self.run:
                        self._model.apply(record, arrived)
                        taken += 1
        return taken

    def _push(self) -> None:
        """Bring the page up to date, 4–5 times a second, until the run is over."""
        pause, quiet_until, patience = 0.0, 0.0, _STATIC_PERIODS[0]
        static_at = time.monotonic() + patience
        while not self._stop.wait(pause):
            pause = _PERIOD
            started = time.monotonic()
            # Nothing new: clocks and lamps still move, once a second.
            if self._drain() or started >= quiet_until:
                snapshot = self.snapshot()
                sent = self._page.push(snapshot)
                self._page.stay_busy()
                quiet_until = started + 1.0
                if started >= static_at:
                    self._page.refresh(snapshot)
                    patience = min(2 * patience, _STATIC_PERIODS[1])
                    static_at = time.monotonic() + patience
                pause = max(_PERIOD, sent / _BYTES_PER_SECOND)
            pause = max(pause - (time.monotonic() - started), 0.02)


class _Page:
    """The display of a board: its widget and the static picture beside it."""

    def __init__(self, snapshot: Snapshot, where: Callable[[], str] | None, kernel: Any) -> None:
        from IPython.display import display

        from nbmn.dashboard.asking import Asking
        from nbmn.dashboard.widget import BoardWidget, bokeh_runtime

        self._kernel = kernel
        self._figures: dict[tuple[str, tuple[str, ...], str], str] = {}
        self._widget = BoardWidget(runtime=bokeh_runtime(), answers=where is not None)
        self._asking = None if where is None else Asking(self._widget, where)
        self.push(snapshot)
        self._handle = display(self._bundle(snapshot, live=True), raw=True, display_id=True)

    def push(self, snapshot: Snapshot) -> int:
        """Send everything; returns the number of bytes."""
        from nbmn.dashboard.figures import encode_figure

        state, frame = encode_state(snapshot), encode_frame(snapshot)
        figures = []
        for chart in snapshot.charts[:MAX_CHARTS]:
            # What a figure says for good: its curves, and in which unit of time.
            curves = chart.key, chart.names, chart.x_label
            if curves not in self._figures:
                self._figures[curves] = encode_figure(chart, snapshot.ranks)
            figures.append(self._figures[curves])
        with self._widget.hold_sync():
            self._widget.figures = f"[{','.join(figures)}]"
            self._widget.state = state
            self._widget.frame = frame
            self._widget.beat += 1
        return len(state) + len(frame)

    def stay_busy(self) -> None:
        """Say that the kernel is at work: in between, it has said that it was through with a
        message of the page's widget, and front ends show what they have heard last."""
        busy = {"execution_state": "busy"}
        self._kernel.send_response(self._kernel.iopub_socket, "status", busy, ident=b"status")

    def refresh(self, snapshot: Snapshot) -> None:
        """Renew what a viewer without a kernel sees should the notebook be saved now."""
        self._handle.update(self._bundle(snapshot, live=True), raw=True)

    def close(self, snapshot: Snapshot) -> None:
        """Leave only what needs no kernel."""
        from nbmn.dashboard.widget import retire

        if self._asking is not None:
            self._asking.close()
        self._handle.update(self._bundle(snapshot, live=False), raw=True)
        # A page that was reloaded during the run still shows it.
        retire(self._widget)

    def _bundle(self, snapshot: Snapshot, live: bool) -> dict[str, Any]:
        bundle: dict[str, Any] = {"text/plain": plain(snapshot), "text/html": html(snapshot)}
        if live:
            view = {"version_major": 2, "version_minor": 0, "model_id": self._widget.model_id}
            bundle[_WIDGET] = view
        return bundle
