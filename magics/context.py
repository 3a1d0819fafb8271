"""What the magics share: the shell and the running session."""

from __future__ import annotations

import atexit
import uuid
from collections.abc import Sequence

from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics
from IPython.display import display

from nbmn.cluster import ClusterError, NoRanksError, Plan, Session
from nbmn.cluster.tables import Bundle
from nbmn.front_end import front_end
from nbmn.magics.journal import Journal
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
        atexit.register(self.stop)

    def require_session(self) -> Session:
        """The running session.

        Raises
        ------
        NoRanksError
            None was started, or its ranks are gone.
        """
        if self.session is None:
            raise NoRanksError
        self.session.require_alive()
        return self.session

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

    def stop(self) -> bool:
        """Stop the session, if there is one."""
        session, self.session = self.session, None
        self.journal = Journal()
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
