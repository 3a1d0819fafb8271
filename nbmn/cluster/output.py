"""What ranks printed, as a person wants to read it: in rank order, equal output once. Pure."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from ansi2html import Ansi2HTMLConverter

from nbmn.cluster.long_text import KEPT, Gap, bridged
from nbmn.cluster.terminal import settle
from nbmn.markup import template
from nbmn.ranks import name_ranks

LIVE_LINES = 200
"""Lines per group shown while a cell runs; all of them once it has ended."""
LIVE_CHARACTERS = 50_000
"""Characters from which those lines are taken: a redraw must stay cheap."""


@dataclass(frozen=True)
class RankOutput:
    """Everything one rank put out so far."""

    rank: int
    stdout: str = ""
    stderr: str = ""
    displays: tuple[dict[str, Any], ...] = ()
    """Rich output: ``{"data": mime bundle, "metadata": …}`` each, in order."""
    result: dict[str, Any] | None = None
    """The last expression, as a mime bundle."""
    gaps: tuple[Gap, Gap] = (Gap(), Gap())
    """What is left out of stdout and of stderr."""

    def is_empty(self) -> bool:
        return not (self.stdout or self.stderr or self.displays or self.result)

    @property
    def text_result(self) -> str:
        """The last expression where it is text only, else ``""``."""
        data = (self.result or {}).get("data", {})
        return data.get("text/plain", "") if set(data) == {"text/plain"} else ""

    @property
    def rich(self) -> tuple[dict[str, Any], ...]:
        """Rich displays, and the last expression where it is more than text."""
        result = self.result
        last = (result,) if result and not self.text_result else ()
        return self.displays + last


@dataclass(frozen=True)
class Group:
    """Ranks whose output is alike."""

    ranks: tuple[int, ...]
    output: RankOutput = field(repr=False)


def _continues(shorter: RankOutput, longer: RankOutput) -> bool:
    pairs = zip(_streams(shorter), _streams(longer), strict=True)
    return all(
        long.startswith(short) if not gap.characters else long[:KEPT].startswith(short[:KEPT])
        for (short, _), (long, gap) in pairs
    )


def _streams(output: RankOutput) -> list[tuple[str, Gap]]:
    return list(zip((output.stdout, output.stderr), output.gaps, strict=True))


def _equal(one: RankOutput, other: RankOutput) -> bool:
    return replace(one, rank=other.rank) == other


def group(outputs: Sequence[RankOutput], running: bool = False) -> list[Group]:
    """Put ranks with equal output together, in rank order.

    While the cell is running a rank that is merely behind counts as alike:
    its text is the beginning of the other's. Ranks without output are left out.
    """
    members: list[list[RankOutput]] = []
    for output in outputs:
        if output.is_empty():
            continue
        for group_members in members:
            lead = group_members[0]
            if _equal(lead, output) or (running and _continues(output, lead)):
                group_members.append(output)
                break
            if running and _continues(lead, output):
                group_members.insert(0, output)
                break
        else:
            members.append([output])
    groups = [Group(tuple(sorted(out.rank for out in ms)), ms[0]) for ms in members]
    return sorted(groups, key=lambda g: g.ranks)


def _tail(text: str, gap: Gap, lines: int | None) -> str:
    if lines is None:
        return settle(bridged(text, gap))
    end = text if len(text) <= LIVE_CHARACTERS else text[-LIVE_CHARACTERS:]
    rows = settle(end).splitlines(keepends=True)
    shown = "".join(rows[-lines:])
    if end is text and len(rows) <= lines:
        return shown
    above = text.count("\n") + gap.lines - shown.count("\n")
    return f"… {above} line{'s' * (above != 1)} above …\n{shown}" if above else f"… {shown}"


def render_text(groups: Sequence[Group], lines: int | None = None, notice: str = "") -> str:
    """The groups' text for a terminal, ANSI colours kept, and a last word on all."""
    parts = []
    for each in groups:
        body = "".join(_with_newline(text) for _, text in _texts(each.output, lines))
        if body:
            parts.append(f"{name_ranks(each.ranks)}:\n{body}")
    return "".join([*parts, notice]).rstrip("\n")


def _with_newline(text: str) -> str:
    return text if not text or text.endswith("\n") else text + "\n"


def _texts(output: RankOutput, lines: int | None) -> list[tuple[str, str]]:
    texts = [*_streams(output), (output.text_result, Gap())]
    kinds = ("stdout", "stderr", "result")
    return [
        (kind, _tail(text, gap, lines))
        for kind, (text, gap) in zip(kinds, texts, strict=True)
        if text
    ]


def render_html(groups: Sequence[Group], lines: int | None = None, notice: str = "") -> str:
    """The groups' text for a notebook page, themed by the page's own colours."""
    body = "".join(
        template("nbmn.cluster", "group.html").substitute(
            who=html.escape(name_ranks(each.ranks)),
            streams="".join(
                template("nbmn.cluster", "stream.html").substitute(
                    kind=kind, text=_ansi_html(text.rstrip("\n"))
                )
                for kind, text in _texts(each.output, lines)
            ),
        )
        for each in groups
        if _texts(each.output, lines)
    )
    if notice:
        body += template("nbmn.cluster", "notice.html").substitute(text=html.escape(notice))
    return template("nbmn.cluster", "output.html").substitute(body=body)


@cache
def _converter() -> Callable[..., str]:
    return Ansi2HTMLConverter(inline=True, dark_bg=False).convert


def _ansi_html(text: str) -> str:
    return _converter()(text, full=False) if "\x1b[" in text else html.escape(text, quote=False)
