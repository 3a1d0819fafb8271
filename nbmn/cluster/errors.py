"""What the notebook raises: what happened, on which rank, and what to do next."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from nbmn.debug.diagnosis import Diagnosis
from nbmn.messages import CellError
from nbmn.ranks import name_ranks


class ClusterError(RuntimeError):
    """Something about the ranks is wrong; the message says what to do.

    IPython shows the message alone: the notebook's own frames explain nothing.
    """

    def _render_traceback_(self) -> list[str]:
        return [f"\033[31m{type(self).__name__}\033[0m: {self}"]


class StartError(ClusterError):
    """The ranks did not start. Nothing of the attempt is left running."""


class NoRanksError(ClusterError):
    """A magic that needs ranks was used before ``%mn_start``."""

    def __init__(self, message: str = "no ranks are running; start some with %mn_start 2") -> None:
        super().__init__(message)


class Stopped(KeyboardInterrupt):
    """The person stopped something.

    A KeyboardInterrupt, so that Run All ends; shown as one line.
    """

    def _render_traceback_(self) -> list[str]:
        return [f"\033[31mKeyboardInterrupt\033[0m: {self}"]


@contextlib.contextmanager
def stoppable(what: str) -> Iterator[None]:
    """Show a Ctrl-C as one line that says what was stopped, such as ``while ranks start``.

    Raises
    ------
    Stopped
        Instead of another KeyboardInterrupt.
    """
    try:
        yield
    except Stopped:
        raise
    except KeyboardInterrupt:
        raise Stopped(what) from None


class RanksInterrupted(Stopped):
    """The person stopped a cell on ``ranks``; ``running`` have not answered yet."""

    def __init__(self, ranks: Sequence[int], running: Sequence[int] = ()) -> None:
        self.ranks = tuple(ranks)
        self.running = tuple(running)
        late = f"; {name_ranks(running)} not yet" if self.running else ""
        super().__init__(f"stopped on {name_ranks(self.ranks)}{late}")


@dataclass(frozen=True, slots=True)
class Failure:
    """Equal errors of several ranks, folded."""

    ranks: tuple[int, ...]
    error: CellError
    """The first one's."""
    accounts: tuple[str, ...] = ()
    """Where the memory was on each rank, where there was too little."""


class RanksFailed(ClusterError):
    """A cell failed on some ranks.

    Attributes
    ----------
    failures
        One entry per distinct error, lowest rank first.
    diagnosis
        Who waited for the failed ranks and was freed; None if nobody was.
    """

    def __init__(
        self, failures: Sequence[Failure], diagnosis: Diagnosis | None = None, note: str = ""
    ) -> None:
        self.failures = tuple(failures)
        self.diagnosis = diagnosis
        waited = "" if diagnosis is None else diagnosis.waited()
        accounts = [line for failure in self.failures for line in _accounts(failure)]
        self._notes = [*accounts, *(text for text in (waited, note) if text)]
        super().__init__("\n".join([*map(_headline, self.failures), *self._notes]))

    def _render_traceback_(self) -> list[str]:
        lines = [_painted(failure) for failure in self.failures]
        lines += self._notes
        for failure in self.failures:
            if failure.error.traceback:
                if len(self.failures) > 1:
                    lines.append(f"\n{name_ranks(failure.ranks)}:")
                lines.append(failure.error.traceback.rstrip("\n"))
        raised = [f.ranks[0] for f in self.failures if f.error.traceback and f.error.in_cell]
        if raised:
            lines.append(f"\n%mn_debug {raised[0]} opens a debugger there")
        return lines


class RanksStuck(ClusterError):
    """No rank failed, but some waited for ever, and nbmn freed them; or wait in the background.

    Attributes
    ----------
    diagnosis
        Who waited for whom.
    """

    def __init__(self, diagnosis: Diagnosis, notes: Sequence[str] = ()) -> None:
        self.diagnosis = diagnosis
        super().__init__("\n".join([diagnosis.past(), *notes]))


def _headline(failure: Failure) -> str:
    error = failure.error
    origin = "" if error.origin is None else f"{describe(error.origin)}; then "
    return f"{name_ranks(failure.ranks)} raised {origin}{describe(error)}"


def _painted(failure: Failure) -> str:
    name = (failure.error.origin or failure.error).name
    return _headline(failure).replace(name, f"\033[31m{name}\033[0m", 1)


def describe(error: CellError) -> str:
    """An exception in words: its name, place and message."""
    message = f": {error.message}" if error.message else ""
    return f"{error.name}{_at(error)}{message}"


def fold(errors: dict[int, CellError]) -> list[Failure]:
    """Put equal errors together: same exception, message, line and origin."""
    groups: dict[CellError, list[int]] = {}
    for rank in sorted(errors):
        groups.setdefault(_alike(errors[rank]), []).append(rank)
    return [
        Failure(
            tuple(ranks),
            errors[ranks[0]],
            tuple(errors[rank].account for rank in ranks if errors[rank].account),
        )
        for ranks in groups.values()
    ]


def _accounts(failure: Failure) -> list[str]:
    """The first account, and the summaries of the others."""
    first, others = failure.accounts[:1], failure.accounts[1:]
    return [*first, *(account.partition("\n")[0] for account in others)]


def _alike(error: CellError) -> CellError:
    return replace(error, traceback="", account="", after_interrupt=False)


def is_interrupt(error: CellError | None) -> bool:
    """Whether a rank was interrupted, or found that another one was."""
    return error is not None and error.name in ("KeyboardInterrupt", "BrokenCommunicatorError")


def was_freed(error: CellError | None) -> bool:
    """Whether a rank that was freed from a wait may have failed for no other reason."""
    if error is None:
        return True  # the user's code caught the interrupt
    return error.origin is None and (is_interrupt(error) or error.after_interrupt)


def note(error: CellError, stopped: bool) -> str:
    """What is shown beside a rank's output, where the cell does not raise its error (yet)."""
    if stopped and is_interrupt(error):
        return f"stopped{_at(error)}\n"
    return f"{error.name}{_at(error)}: {error.message}\n"


def unanswered(where: Mapping[int, str], seconds: float) -> str:
    """Say which ranks have not answered an interrupt for so many seconds.

    Parameters
    ----------
    where
        What each of them does, in words.
    """
    places = "; ".join(f"rank {rank} {what}" for rank, what in where.items())
    return (
        f"{name_ranks(list(where))} did not answer the interrupt within {seconds:.1f} s: "
        f"{places}. Native code sees no interrupt before it returns, and a cell may catch "
        "KeyboardInterrupt. The next cell comes after this one. %mn_interrupt once more kills "
        f"{'it' if len(where) == 1 else 'them'}, and %mn_restart starts afresh (variables on "
        "the ranks are lost)"
    )


def _at(error: CellError) -> str:
    return f" at {error.where}" if error.where else ""
