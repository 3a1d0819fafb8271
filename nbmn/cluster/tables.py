"""Ranks as tables: while they start, and what they are and do."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nbmn.debug.states import Heard
from nbmn.markup import template
from nbmn.messages import RankInfo


@dataclass(frozen=True, slots=True)
class Bundle:
    """The same content for a page and for a terminal."""

    text: str
    html: str

    def mime(self) -> dict[str, str]:
        return {"text/plain": self.text, "text/html": self.html}


@dataclass(frozen=True, slots=True)
class StartProgress:
    """How far a start is."""

    total: int
    loaded: frozenset[int] = frozenset()
    """Ranks whose engine has registered."""
    ready: frozenset[int] = frozenset()
    """Ranks with device and communicator."""
    step: str = ""

    def state(self, rank: int) -> str:
        if rank in self.ready:
            return "ready"
        return "loaded; device and communicator …" if rank in self.loaded else "launched; loading …"


EACH_RANK = 16
"""Ranks up to which a start shows a line for each."""


def start_table(progress: StartProgress) -> Bundle:
    """The live view of a start."""
    head = f"{progress.step} — {len(progress.ready)} of {progress.total} ready"
    if progress.total > EACH_RANK:
        rows = [["loaded", str(len(progress.loaded))], ["ready", str(len(progress.ready))]]
        return table(head, ["ranks", "number"], rows)
    rows = [[str(rank), progress.state(rank)] for rank in range(progress.total)]
    return table(head, ["rank", "state"], rows)


def ranks_table(title: str, ranks: Sequence[RankInfo], foot: str = "") -> Bundle:
    """Who the ranks are."""
    rows = [[str(info.rank), info.host, info.device, str(info.pid)] for info in ranks]
    return table(title, ["rank", "host", "device", "pid"], rows, foot)


def status_table(
    title: str,
    ranks: Sequence[RankInfo],
    beats: Mapping[int, Heard],
    runs: Mapping[int, str],
    now: float,
) -> Bundle:
    """What the ranks are and do.

    ``runs`` names the run that each rank has been sent and not ended, if any;
    ``now`` is ``time.monotonic()``.
    """
    rows = [
        [str(r.rank), r.host, r.device, str(r.pid), doing(beats.get(r.rank), runs.get(r.rank), now)]
        for r in ranks
    ]
    return table(title, ["rank", "host", "device", "pid", "now"], rows)


SILENT = 3.0
"""Seconds without a heartbeat after which a rank is called silent."""


def doing(last: Heard | None, run: str | None, now: float) -> str:
    """A rank's state in words.

    What was sent and what was answered the notebook knows for certain; a
    heartbeat may be half a second old, and adds what a cell is doing.
    """
    age = now - last.arrived if last is not None else 0.0
    if last is not None and age > SILENT:
        return f"silent for {age:.0f} s (was {last.beat.state})"
    if run is None:
        return "idle"
    cell = f"runs cell {run.partition('#')[0]}"
    if last is None or last.beat.run != run:
        return cell
    beat = last.beat
    if beat.state == "waiting":
        place = f" at {beat.where}" if beat.where else ""
        return f"waits in {beat.operation}{place} for {beat.seconds + age:.1f} s"
    if beat.state == "debugging":
        return f"is at a debugger's prompt, at {beat.where}, for {beat.seconds + age:.1f} s"
    place = f", now at {beat.where}" if beat.where else ""
    return f"{cell} for {beat.seconds + age:.1f} s{place}"


def table(
    title: str, header: Sequence[str], rows: Sequence[Sequence[str]], foot: str = ""
) -> Bundle:
    """A small table; every cell is text."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in [header, *rows]
    ]
    text = "\n".join([title, *lines, *([foot] if foot else [])])
    markup = template("nbmn.cluster", "table.html").substitute(
        title=html.escape(title),
        header="".join(f"<th>{html.escape(name)}</th>" for name in header),
        rows="".join(
            f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in rows
        ),
        foot=html.escape(foot),
    )
    return Bundle(text, markup)
