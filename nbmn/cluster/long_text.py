"""Text of which a beginning and an end are kept, however much is written. Pure."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

KEPT = 3_000_000
"""Characters that are kept of the beginning, and of the end."""


@dataclass(frozen=True, slots=True)
class Gap:
    """What is left out of a text, after its first :data:`KEPT` characters."""

    characters: int = 0
    lines: int = 0
    """Ends of lines."""
    checksum: int = 0

    def grown(self, text: str) -> Gap:
        """With more that is left out behind it."""
        checksum = zlib.crc32(text.encode(errors="surrogatepass"), self.checksum)
        return Gap(self.characters + len(text), self.lines + text.count("\n"), checksum)


class LongText:
    """Text that grows; for days, if need be."""

    def __init__(self) -> None:
        self._start: str | None = None
        """Once something is left out."""
        self._pieces: list[str] = []
        self._length = 0
        self._read: str | None = ""
        """What was read last; None when more has been written."""
        self.gap = Gap()

    def add(self, text: str) -> None:
        self._read = None
        self._pieces.append(text)
        self._length += len(text)
        if self._length > 4 * KEPT:
            self._settle()

    def read(self) -> str:
        """What is kept, without a word on the :attr:`gap`; the same however it was written."""
        if self._read is None:
            self._settle()
            self._read = (self._start or "") + self._pieces[0]
        return self._read

    def _settle(self) -> None:
        text = "".join(self._pieces)
        if self._start is None and len(text) > 2 * KEPT:
            self._start, text = text[:KEPT], text[KEPT:]
        if self._start is not None:
            self.gap = self.gap.grown(text[:-KEPT])
            text = text[-KEPT:]
        self._pieces, self._length = [text], len(text)


def bridged(text: str, gap: Gap) -> str:
    """The text with a line in place of what is left out of it, from whole lines where it has any.

    A progress bar needs none: it goes on in the line in which it began.
    """
    if not gap.characters:
        return text
    start, end = text[:KEPT], text[KEPT:]
    if not gap.lines and "\r" in end:
        return start + end[end.index("\r") :]
    before, first, _ = start.rpartition("\n")
    _, last, after = end.partition("\n")
    if gap.lines and first and last:
        return f"{before}\n… {gap.lines + 1:,} lines left out …\n{after}"
    return f"{start}\n… {gap.characters:,} characters left out …\n{end}"
