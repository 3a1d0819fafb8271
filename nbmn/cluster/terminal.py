"""Text as a terminal would leave it: carriage returns, backspaces and cursor moves carried out.

Progress bars (Chainer's, tqdm's) redraw themselves with these. Colours stay.
"""

from __future__ import annotations

import re

_TOKEN = re.compile(
    r"\x1b\[([0-9;?]*)([A-Za-z])"  # a command
    r"|([\r\n\x08])"
    r"|([^\x1b\r\n\x08]+)"
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"  # a title or link: no place for it
    r"|\x1b"
)


class _Screen:
    """Rows of cells; a cell is a character with the colours switched beside it."""

    def __init__(self) -> None:
        self.rows: list[list[str]] = [[]]
        self.row = 0
        self.column = 0
        self.colours = ""

    def write(self, text: str) -> None:
        line = self.rows[self.row]
        if self.column > len(line):
            line.extend(" " * (self.column - len(line)))
        cells = list(text)
        if self.colours:
            cells[0] = self.colours + cells[0]
            self.colours = ""
        line[self.column : self.column + len(cells)] = cells
        self.column += len(cells)

    def control(self, character: str) -> None:
        if character == "\n":
            self.row += 1
            self.column = 0
            if self.row == len(self.rows):
                self.rows.append([])
        elif character == "\r":
            self.column = 0
        else:
            self.column = max(0, self.column - 1)

    def escape(self, argument: str, command: str) -> None:
        count = int(argument) if argument.isdigit() else 1
        if command == "m":
            self._switch(f"\x1b[{argument}m")
        elif command == "A":
            self.row = max(0, self.row - count)
        elif command == "B":
            self.row = min(len(self.rows) - 1, self.row + count)
        elif command == "C":
            self.column += count
        elif command == "D":
            self.column = max(0, self.column - count)
        elif command == "G":
            self.column = count - 1
        elif command == "K":
            del self.rows[self.row][self.column :]
        elif command == "J":
            del self.rows[self.row][self.column :]
            del self.rows[self.row + 1 :]
        # Anything else (titles, modes) has no place in a notebook.

    def _switch(self, colours: str) -> None:
        """Attach colours to the character they come after, or else to the next."""
        line = self.rows[self.row]
        if 0 < self.column <= len(line):
            line[self.column - 1] += colours
        else:
            self.colours += colours

    def text(self) -> str:
        return "\n".join("".join(row) for row in self.rows) + self.colours


def settle(text: str) -> str:
    """What stays visible of ``text``; plain text comes back as it is.

    Examples
    --------
    >>> settle("10%\\r20%\\n")
    '20%\\n'
    """
    if not ("\r" in text or "\x08" in text or "\x1b" in text):
        return text
    screen = _Screen()
    for argument, command, control, plain in _TOKEN.findall(text.replace("\r\n", "\n")):
        if plain:
            screen.write(plain)
        elif control:
            screen.control(control)
        elif command:
            screen.escape(argument, command)
    return screen.text()
