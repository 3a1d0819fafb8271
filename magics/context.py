"""What the magics share: the shell and the running session."""

from __future__ import annotations

import atexit
import contextlib
import threading
import uuid
from collections.abc import Iterator, Sequence

from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics
from IPython.display import display

from nbmn.cluster import ClusterError, NoRanksError, Plan, Session
from nbmn.cluster.tables import Bundle
from nbmn.front_end import front_end
from nbmn.magics.journal import Done, Journal
from nbmn.ranks import parse_ranks


class Context:
    """Found once, when the extension is loaded."""

    def __init__(self, shell: InteractiveShell) -> None:
        self.shell = shell
        self.session: Session | None = None
        self.plan: Plan | None = None
        """How ranks were started last."""
        self.journal = Journal()
        """What succeeded on the ranks of the session."""
        # A Ctrl-C just before its release leaves it to the thread of the cells, which then is free
        # to take it again.
        self._changing = threading.RLock()
        self._change = ""
        """What becomes of the ranks at this moment, such as ``2 ranks are starting``."""
        atexit.register(self.stop)

    def require_session(self) -> Session:
        """The running session.

        Raises
        ------
        NoRanksError
            None was started, its ranks are gone, or ranks are starting or ending.
        """
        session, change = self.session, self._change
        if session is None:
            raise NoRanksError(f"{change}; wait for that") if change else NoRanksError()
        session.require_alive()
        return session

    @contextlib.contextmanager
    def change(self, what: str) -> Iterator[None]:
        """While ranks start or end; what other threads ask meanwhile is told ``what``.

        Raises
        ------
        ClusterError
            Another thread is at it.
        """
        if not self._changing.acquire(blocking=False):
            change = self._change or "ranks are starting or ending"
            raise ClusterError(f"{change}; wait for that, or stop the cell that does it")
        try:
            self._change = what
            yield
        finally:
            self._change = ""
            self._changing.release()

    def choose_ranks(self, words: Sequence[str]) -> tuple[int, ...]:
        """The ranks a person typed.

        Raises
        ------
        ClusterError
            They typed something else.
        """
        try:
            return parse_ranks(" ".join(words), self.require_session().size)
        except ValueError as error:
            raise ClusterError(str(error)) from None

    def choose_rank(self, word: str) -> int:
        """The one rank a person typed.

        Raises
        ------
        ClusterError
            They typed something else.
        """
        if not word.removeprefix("-").isdecimal():
            raise ClusterError(f"{word!r} is no rank; name one, such as 0")
        ranks = self.choose_ranks([word])
        return ranks[0]

    def stop(self, ahead: Sequence[Done] = ()) -> bool:
        """Stop the session, if there is one.

        Parameters
        ----------
        ahead
            What is to be done again on the next one's ranks.
        """
        session, self.session, self.journal = self.session, None, Journal(ahead)
        if session is not None:
            session.stop()
        return session is not None

    @property
    def label(self) -> str:
        """The running cell's number as the notebook shows it, such as ``[12]``."""
        # The shell's own counter is one ahead while a cell runs, in newer versions of IPython.
        running = getattr(self.shell.displayhook, "exec_result", None)
        count = running.execution_count if running is not None else None
        return f"[{count or self.shell.execution_count}]"


class ContextMagics(Magics):
    """Magics that know the context."""

    def __init__(self, shell: InteractiveShell, context: Context) -> None:
        super().__init__(shell)
        self.context = context


def show(bundle: Bundle) -> None:
    """Display a bundle in the current cell."""
    display(bundle.mime(), raw=True)


class Place:
    """Where one bundle takes another's place; where none can, it comes below the other."""

    def __init__(self) -> None:
        self.redraws = front_end().redraws
        self._shown: Bundle | None = None
        self._id = uuid.uuid4().hex

    def show(self, bundle: Bundle) -> None:
        """Display a bundle; nothing if that is what is displayed."""
        if bundle == self._shown:
            return
        update = self.redraws and self._shown is not None
        display(bundle.mime(), raw=True, display_id=self._id, update=update)
        self._shown = bundle
