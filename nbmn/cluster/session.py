"""The one running set of ranks of a notebook: run cells on it, watch it, stop it."""

from __future__ import annotations

import contextlib
import functools
import itertools
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ipyparallel import Client
from ipyparallel.error import EngineError, RemoteError

from nbmn.cluster.area import Area
from nbmn.cluster.calls import Call, send
from nbmn.cluster.cells import CellRun
from nbmn.cluster.death import Fate, cause, fates
from nbmn.cluster.errors import ClusterError, NoRanksError, was_freed
from nbmn.cluster.launch import Plan
from nbmn.cluster.listener import Listener
from nbmn.cluster.memory import Memory
from nbmn.cluster.processes import Watch, processes_of, shut_down, uninterrupted
from nbmn.cluster.verdict import after_failures
from nbmn.cluster.watching import Answer, compare_iterations, iterations_in, look, to_come
from nbmn.debug.crashes import LastWords
from nbmn.debug.diagnosis import Diagnosis, deadlock, delay
from nbmn.debug.probe import Stacks, is_here
from nbmn.debug.states import RankState
from nbmn.engine.bootstrap import renew_communicators
from nbmn.engine.cells import run_cell
from nbmn.messages import CellError, CellRequest, RankInfo
from nbmn.ranks import name_ranks

RENEWAL_PATIENCE = 30.0
"""Seconds that idle ranks have to renew their communicators."""
MPIEXEC_PATIENCE = 1.0
"""Seconds that mpiexec has to say of what a rank died."""


class Session:
    """Running ranks. Made by :func:`nbmn.cluster.start`; of no use after :meth:`stop`."""

    def __init__(
        self,
        plan: Plan,
        cluster: Any,
        client: Client,
        listener: Listener,
        ranks: Sequence[RankInfo],
    ) -> None:
        self.plan = plan
        self.ranks = tuple(sorted(ranks, key=lambda info: info.rank))
        self.listener = listener
        self._cluster = cluster
        self._client = client
        self._watch = Watch(self.ranks)
        self._memory = Memory()
        self.stacks = Stacks()
        """Of ranks on this host that cannot answer."""
        self._last_words = LastWords(self.ranks)
        self._sent: dict[int, str] = {}
        """The run that each rank was sent last."""
        self._failed: dict[int, CellError] = {}
        """How the last cell failed, of ranks on which it did."""
        self._killed: tuple[int, ...] = ()
        self._runs = itertools.count(1)
        self._renewals = itertools.count(1)
        self._active: tuple[CellRun, ...] = ()
        self._stale = False
        self._stopped = False
        self._book = threading.Lock()
        """Held for a moment, to read and write what is active."""
        self._turn = threading.Lock()
        """Held while ranks renew their communicators and a cell is sent to them."""

    @property
    def size(self) -> int:
        return len(self.ranks)

    # Cells.

    def new_run(self, label: str) -> str:
        """A name no other run of these ranks has."""
        return f"{label}#{next(self._runs)}"

    def submit(
        self,
        code: str,
        ranks: Sequence[int],
        label: str,
        area: Area,
        keep: bool = False,
        run: str = "",
        debug: int | None = None,
        post_mortem: bool = False,
    ) -> CellRun:
        """Run a cell on ranks, after those that run there already; returns at once.

        Parameters
        ----------
        label
            How tracebacks call the cell, such as ``[12]``.
        keep
            Send the value of the last expression back.
        run
            From :meth:`new_run`, where the area must know it before.
        debug
            The rank whose breakpoints open a prompt, see :class:`nbmn.debug.prompt.Prompt`.
        post_mortem
            Open a prompt at the rank's last exception instead.

        Raises
        ------
        NoRanksError
            The ranks are gone.
        """
        self.require_alive()
        name = run or self.new_run(label)
        request = CellRequest(code, label, name, keep, debug, post_mortem)
        with self._book:
            before = [other for other in self._active if set(other.ranks) & set(ranks)]
        cell = CellRun(request, ranks, self, area, before)
        # A run that is listed and not started would block all that come after it.
        uninterrupted(functools.partial(self._enlist, cell))
        return cell

    def _enlist(self, cell: CellRun) -> None:
        with self._book:
            self._active = (*self._active, cell)
        cell.start()

    def stop_run(self, run: str) -> None:
        """Stop a cell by its name, if it is active; raises as its ``wait`` does after Ctrl-C."""
        for cell in self._active:
            if cell.request.run == run:
                cell.presses.stop()

    @property
    def active(self) -> tuple[CellRun, ...]:
        """Cells that have not ended, in the order in which they were asked for."""
        return self._active

    def running(self) -> dict[int, CellRun]:
        """The cell that each rank runs now, for those that run one."""
        return {rank: run for run in self._active for rank in run.running()}

    @contextlib.contextmanager
    def idle(self, ranks: Sequence[int]) -> Iterator[None]:
        """Make sure ranks live, run no cell and have whole communicators.

        Inside, no other thread sends anything to the ranks: calls that ranks make
        together come to all of them in the same order.

        Raises
        ------
        ClusterError
            A cell in the background still runs on one of them.
        """
        self.require_alive()
        for run in self._active:
            busy = sorted(set(run.ranks) & set(ranks))
            if busy:
                raise ClusterError(
                    f"{name_ranks(busy)} still run{'s' * (len(busy) == 1)} cell "
                    f"{run.request.label} in the background; wait for it, or interrupt it"
                )
        with self._turn:
            self._renew_if_stale()
            yield

    def call(self, ranks: Sequence[int], function: Callable[..., Any], *args: Any) -> dict:
        """Call an importable function on ranks; returns a ``Call`` for each at once."""
        return send(self._client, {r: self.ranks[r].engine for r in ranks}, function, *args)

    # What a run asks of its session, in its own thread.

    def send_cell(self, run: CellRun) -> dict[int, Call]:
        """Send a cell whose turn has come; to nobody, if it was stopped meanwhile."""
        with self._turn:
            self._renew_if_stale()
            if run.interrupted:
                return {}
            self._sent.update(dict.fromkeys(run.ranks, run.request.run))
            for rank in run.ranks:
                self._failed.pop(rank, None)
            return self.call(run.ranks, run_cell, run.request)

    def cell_ended(self, run: CellRun) -> None:
        """Take note that a run is over."""
        with self._book:
            self._active = tuple(other for other in self._active if other is not run)
            self._stale = self._stale or not run.clean
            own = {rank: e for rank, e in run.errors().items() if not was_freed(e)}
            self._failed.update(own)

    def distrust(self) -> None:
        """Renew the communicators before they are used again."""
        self._stale = True

    def _renew_if_stale(self) -> None:
        """After a failure or interrupt, and once nothing runs, renew the communicators."""
        if not self._stale or self.running():
            return
        everyone = range(self.size)
        calls = self.call(everyone, renew_communicators, next(self._renewals))
        for rank, call in calls.items():
            try:
                if not call.wait(RENEWAL_PATIENCE):
                    raise ClusterError(
                        f"{name_ranks([rank])} did not renew its communicators within "
                        f"{RENEWAL_PATIENCE:g} s; %mn_restart starts new ranks"
                    )
                call.result()
            except EngineError as error:
                raise NoRanksError(self.death() or str(error)) from None
            except RemoteError as error:
                raise ClusterError(
                    f"{name_ranks([rank])} could not renew its communicators "
                    f"({error.ename}: {error.evalue}); %mn_restart starts new ranks"
                ) from None
        self._stale = False

    # Life.

    def look(self, run: str, answers: Mapping[int, Answer]) -> dict[int, RankState]:
        """The state of every rank, as the run of that name sees it."""
        # First what is to come: what begins meanwhile is then found among what runs.
        queued = to_come([other.turn for other in self._active], run)
        running = queued | {rank: other.request.run for rank, other in self.running().items()}
        beats = self.listener.beats
        return look(self.ranks, beats, running, answers, run, time.monotonic(), self.stacks)

    def explain(self, states: Mapping[int, RankState], since: float) -> Diagnosis | None:
        """Which ranks wait for ever in a cell that began at ``since``, and why."""
        found = deadlock(states)
        if found is None:
            return None
        return after_failures(
            compare_iterations(found, states, self.ranks, since), dict(self._failed)
        )

    def compare(self, errors: Mapping[int, CellError], since: float) -> str:
        """Which ranks made fewer calls than others, where that is what these errors are about."""
        return iterations_in(errors, self.ranks, since)

    def delay(self, states: Mapping[int, RankState]) -> Diagnosis | None:
        """Which ranks have kept others waiting for long, though not for ever."""
        return delay(states, {i.rank: i.pid for i in self.ranks if is_here(i.host)})

    def kill(self, ranks: Sequence[int]) -> None:
        """Kill ranks that answer nothing; mpiexec ends the others then."""
        self._killed = tuple(ranks)
        if not self._watch.kill(ranks):
            # On another host: its mpiexec can reach it.
            for launcher in self._cluster.engines.values():
                launcher.signal(signal.SIGKILL)

    def death(self) -> str | None:
        """Why the ranks are gone; None while they live."""
        if self._stopped:
            return "the ranks were stopped"
        said = self._mpiexec()
        if said is None:
            return None
        logs, code = said
        if self._killed:
            verb = "was" if len(self._killed) == 1 else "were"
            why = (
                f"{name_ranks(self._killed)} did not answer the interrupt and {verb} killed, and "
                "mpiexec ended the other ranks"
            )
        else:
            lines = {info.rank: self._last_line(info.rank) for info in self.ranks}
            why = cause(logs, self.ranks, self._watch.left, code, lines, self._memory.ran_out())
        starts = f"%mn_restart starts {self.size} new rank{'s' * (self.size > 1)}"
        lost = "variables on the ranks are lost; --replay runs again what had succeeded"
        return f"{why}. {starts} ({lost})"

    def fates(self) -> dict[int, Fate]:
        """How each rank ended, as far as that is known; empty while they live."""
        said = None if self._stopped else self._mpiexec()
        if said is None:
            return {}
        if self._killed:
            others = dict.fromkeys(range(self.size), Fate("ended", "by mpiexec"))
            return others | dict.fromkeys(self._killed, Fate("killed", "for want of an answer"))
        return fates(said[0], self.ranks, self._watch.left, said[1])

    def _mpiexec(self) -> tuple[str, int | None] | None:
        """What mpiexec printed and its exit code, once ranks are gone; None while they live."""
        launchers = list(self._cluster.engines.values())
        if launchers and all(launcher.running for launcher in launchers):
            # mpiexec needs a moment to say why, and may not mind an exit with code 0.
            left_at = self._watch.left_at
            patience = None if left_at is None else time.monotonic() - left_at
            return None if patience is None or patience < MPIEXEC_PATIENCE else ("", None)
        logs = "".join(launcher.get_output() for launcher in launchers)
        codes = [(launcher.stop_data or {}).get("exit_code") for launcher in launchers]
        return logs, next(iter(codes), None)

    def _last_line(self, rank: int) -> str:
        """The user's line at which a rank was when it ended, as far as that is known."""
        heard = self.listener.beats.get(rank)
        # What was heard last may be of an earlier cell.
        known = heard is not None and heard.beat.run == self._sent.get(rank)
        return self._last_words.line(rank) or (heard.beat.where if known else "")

    def require_alive(self) -> None:
        """Raise unless the ranks can take a cell.

        Raises
        ------
        NoRanksError
            With what became of them.
        """
        reason = self.death()
        if reason:
            raise NoRanksError(reason)

    def stop(self) -> None:
        """End ranks and controller; returns when no process of theirs is left."""
        if not self._stopped:
            uninterrupted(self._stop)

    def _stop(self) -> None:
        self._stopped = True
        for run in self._active:
            run.look()
        processes = processes_of(self._cluster)
        self._client.close()
        shut_down(self._cluster, processes)
        self.listener.close()
        self._last_words.close()
