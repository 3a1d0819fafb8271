"""The notebook's side of ``%mn_diff``: ask the ranks, and show what they found."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence

from nbmn import frames
from nbmn.cluster.calls import Call
from nbmn.cluster.session import Session
from nbmn.cluster.tables import Bundle, table
from nbmn.cluster.together import together
from nbmn.debug.comparison import Comparison, how, odd_ranks
from nbmn.engine.differing import differ, examine
from nbmn.markup import template
from nbmn.ranks import name_ranks

ROWS = 24
"""Differing entries that are shown."""
HEADER = ("what", "differs on", "how", "from")
FEW = 5
"""Names listed in a note."""


def diff(
    session: Session, expression: str, ranks: Sequence[int], tolerance: float = 0.0
) -> Comparison:
    """Compare the value of an expression over ranks.

    Parameters
    ----------
    tolerance
        Numbers that are at most so far apart count as alike.

    Raises
    ------
    ClusterError
        Ranks are still busy with a cell.
    RanksStuck
        Ranks waited for ever in the expression, and were freed.
    RanksFailed
        So they did because it raised on another; or the comparison itself failed, for
        example for want of memory.
    RanksInterrupted
        After a Ctrl-C, which interrupts the ranks.
    """
    members = tuple(ranks)

    def evaluate(run: str) -> dict[int, Call]:
        return session.call(ranks, examine, run, expression)

    def compare(run: str) -> dict[int, Call]:
        return session.call(ranks, differ, run, members, tolerance)

    title = f"%mn_diff {expression}"
    evaluated = together(session, title, ranks, evaluate)
    if evaluated.diagnosis is not None:
        evaluated.require()  # what it merely raised on some ranks is a part of the comparison
    parts = together(session, title, ranks, compare).require()
    return frames.load(frames.writable(parts[members[0]]))


def show_comparison(expression: str, comparison: Comparison) -> Bundle:
    """A comparison as a small table."""
    rows = [
        [expression, name_ranks(ranks), failure, ""]
        for failure, ranks in _folded(comparison.failures).items()
    ]
    for difference in comparison.differences:
        for group in difference.others:
            contrast = comparison.contrasts.get((difference.path, group.ranks[0]))
            words = how(group, difference.reference, contrast)
            reference = name_ranks(difference.reference.ranks)
            rows.append([expression + difference.path, name_ranks(group.ranks), words, reference])
    left = len(rows) - ROWS
    notes = [f"… {left} more rows; compare a part of it to see them"] if left > 0 else []
    title = headline(expression, comparison)
    notes += _notes(expression, comparison)
    shown, foot = rows[:ROWS], "\n".join(notes)
    text = table(title, HEADER, shown, foot).text if rows else "\n".join([title, *notes])
    return Bundle(text, _markup(title, shown, foot))


def _folded(failures: Mapping[int, str]) -> dict[str, list[int]]:
    """Ranks by what the expression raised there."""
    ranks: dict[str, list[int]] = {}
    for rank, failure in sorted(failures.items()):
        ranks.setdefault(failure, []).append(rank)
    return ranks


def _markup(title: str, rows: Sequence[Sequence[str]], foot: str) -> str:
    names = ("what", "ranks", "how", "reference")
    lines = [
        template("nbmn.cluster", "difference.html").substitute(
            dict(zip(names, map(html.escape, row), strict=True))
        )
        for row in rows
    ]
    head = "".join(f"<th>{name}</th>" for name in HEADER)
    return template("nbmn.cluster", "comparison.html").substitute(
        title=html.escape(title),
        table=f"<table><tr>{head}</tr>{''.join(lines)}</table>" if lines else "",
        notes=html.escape(foot),
    )


def headline(expression: str, comparison: Comparison) -> str:
    """The outcome in one line."""
    words = []
    compared = [rank for rank in comparison.ranks if rank not in comparison.failures]
    if comparison.failures:
        words.append(f"raised on {name_ranks(comparison.failures)}")
    differing = len(comparison.differences)
    entries = f"{comparison.entries:,} entr{'y' if comparison.entries == 1 else 'ies'}"
    beyond = f" by more than {comparison.tolerance:g}" if comparison.tolerance else ""
    within = f" within {comparison.tolerance:g}" if comparison.tolerance else ""
    if differing:
        odd = odd_ranks(comparison.differences)
        verb = "differs" if len(odd) == 1 else "differ"
        of = f" in {differing:,} of {entries}" if comparison.entries > 1 else ""
        words.append(f"{name_ranks(odd)} {verb}{of}{beyond}")
    elif len(compared) > 1:
        of = f" ({entries})" if comparison.entries > 1 else ""
        words.append(_alike(comparison, name_ranks(compared), within, of))
    elif compared and comparison.failures:
        words.append(f"only {name_ranks(compared)} has a value")
    elif compared:
        words.append(f"one rank only ({name_ranks(compared)}): nothing to compare it with")
    return f"{expression}: {'; '.join(words)}"


def _alike(comparison: Comparison, ranks: str, within: str, of: str) -> str:
    unknown = comparison.uncompared
    if not unknown:
        return f"alike on {ranks}{within}{of}"
    if unknown == comparison.entries:
        return f"cannot be compared; of the same type on {ranks}"
    return (
        f"alike on {ranks}{within} as far as can be compared; "
        f"{unknown:,} of {comparison.entries:,} entries cannot"
    )


def _notes(expression: str, comparison: Comparison) -> list[str]:
    notes = []
    if any(len(d.reference.ranks) * 2 <= len(comparison.ranks) for d in comparison.differences):
        notes.append("where there is no majority, what the lowest rank has is the reference")
    notes += dict.fromkeys(d.expected for d in comparison.differences if d.expected)
    if comparison.nans:
        paths = ", ".join(expression + path for path in comparison.nans[:FEW])
        more = f" and {len(comparison.nans) - FEW} more" if len(comparison.nans) > FEW else ""
        notes.append(f"NaN in {paths}{more}, alike on all ranks")
    if comparison.opaque:
        notes.append(f"not compared, only their types: {', '.join(comparison.opaque[:FEW])}")
    return notes
