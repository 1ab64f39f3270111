"""Prints tables while their rows arrive, and makes what others wrote safe to print.

On a terminal, a table fits the width: columns that may shrink are cut, and an ellipsis marks the
cut. Elsewhere columns are as wide as their values, and nothing is coloured.

Topics, properties, bodies, file names and the errors that quote them come from producers and from
disk. They must not move the cursor, colour a terminal or reverse its text.
"""

from __future__ import annotations

import codecs
import json
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from rmqstore_spark.base.printable import escaped, is_printable

_CONTROL: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_PIECE: Final = 1 << 20


def is_text(body: memoryview) -> bool:
    """Return whether a body is UTF-8 without control characters. Line ends and tabs are text."""
    try:
        return not any(map(_CONTROL.search, text_pieces(body)))
    except UnicodeDecodeError:
        return False


def text_pieces(body: memoryview) -> Iterator[str]:
    """Decode a body of UTF-8 in pieces: as a whole, its text can take four times its bytes.

    Raises:
        UnicodeDecodeError: the body is not UTF-8.
    """
    decoder = codecs.getincrementaldecoder("utf-8")()
    for first in range(0, len(body), _PIECE):
        yield decoder.decode(body[first : first + _PIECE])
    yield decoder.decode(b"", final=True)


def show_time(moment: datetime) -> str:
    """Format a time as `2024-05-01T08:00:00.000Z`, a form that every option for a time accepts."""
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def json_text(value: Any, *, indent: int | None = None) -> str:
    """Return a value as JSON in which every character is printable."""
    separators = (",", ":") if indent is None else None
    text = json.dumps(
        value, ensure_ascii=not _prints_unicode(), indent=indent, separators=separators
    )
    if text.isprintable():
        return text
    # Unprintable characters occur only inside strings, except for the line ends of `indent`.
    return "".join(
        char if char == "\n" or is_printable(char) else json.dumps(char)[1:-1] for char in text
    )


def _prints_unicode() -> bool:
    return (sys.stdout.encoding or "").lower().replace("_", "-") in ("utf-8", "utf8")


_GAP: Final = 2


class Column(NamedTuple):
    """A column of a table.

    Attributes:
        name: its heading.
        right: whether its values are aligned to the right, like numbers.
        least: cells that it keeps when others need room; None if its values are never cut.
    """

    name: str
    right: bool = False
    least: int | None = None


QUEUE_COLUMNS: Final = (
    Column("topic", least=12),
    Column("queue", right=True),
    Column("min", right=True),
    Column("max", right=True),
    Column("messages", right=True),
)
"""The columns of a table with a line for each queue."""


class Table:
    """A table whose rows can arrive in several blocks; its columns grow with their values."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = columns
        self._out = _output()
        self._needed = [_cells(column.name) for column in columns]
        self._is_begun = False

    def rows(self, rows: Iterable[Sequence[str]]) -> None:
        """Print some rows. Their texts can hold anything, and are escaped here."""
        block = [[escaped(value) for value in row] for row in rows]
        for row in block:
            self._needed = [max(n, _cells(v)) for n, v in zip(self._needed, row, strict=True)]
        widths = self._widths()
        if not self._is_begun:
            self._is_begun = True
            self._out.line(self._text([column.name for column in self._columns], widths), "")
        for row in block:
            self._out.line("", self._text(row, widths))

    def _widths(self) -> list[int]:
        widths = list(self._needed)
        if self._out.width is None:
            return widths
        excess = sum(widths) + _GAP * (len(widths) - 1) - self._out.width
        while excess > 0:
            # The widest column that may shrink becomes as wide as the next widest.
            able = [
                (widths[i], i)
                for i, column in enumerate(self._columns)
                if column.least is not None and widths[i] > column.least
            ]
            if not able:
                break
            width, i = max(able)
            below = max([w for w, _ in able if w < width] + [self._columns[i].least or 0])
            cut = min(excess, max(1, width - below))
            widths[i] -= cut
            excess -= cut
        return widths

    def _text(self, values: Sequence[str], widths: Sequence[int]) -> str:
        cells = []
        for column, value, width in zip(self._columns, values, widths, strict=True):
            text = _cut(value, width)
            blank = " " * (width - _cells(text))
            cells.append(blank + text if column.right else text + blank)
        line = (" " * _GAP).join(cells).rstrip()
        return line if self._out.width is None else _cut(line, self._out.width)


def print_table(columns: Sequence[Column], rows: Iterable[Sequence[str]]) -> None:
    """Print a whole table."""
    Table(columns).rows(rows)


def print_facts(facts: Iterable[tuple[str, str]]) -> None:
    """Print names and their values; long values wrap on a terminal."""
    out = _output()
    lines = [(name, escaped(value)) for name, value in facts]
    margin = max(_cells(name) for name, _ in lines) + _GAP
    for name, value in lines:
        for number, part in enumerate(out.wrapped(value, margin)):
            heading = name if number == 0 else ""
            out.line(heading + " " * (margin - _cells(heading)), part)


class _Output:
    """Standard output that is not a terminal: lines need no `rich`, which is slow to import.

    Attributes:
        width: cells of a line of the terminal; None for any number.
    """

    width: int | None = None

    def line(self, heading: str, text: str) -> None:
        """Print a line, of which the heading is bold on a terminal."""
        print((heading + text).rstrip())  # noqa: T201

    def wrapped(self, text: str, margin: int) -> Sequence[str]:  # noqa: ARG002 - no end of a line
        """Return the lines of a text that has a margin of some cells."""
        return (text,)


class _Terminal(_Output):
    def __init__(self) -> None:
        from rich.console import Console

        self._console = Console(markup=False, highlight=False, emoji=False)
        self.width = self._console.width

    def line(self, heading: str, text: str) -> None:
        from rich.text import Text

        line = Text(heading, style="bold").append_text(Text(text))
        line.rstrip()
        self._console.print(line, soft_wrap=True)

    def wrapped(self, text: str, margin: int) -> Sequence[str]:
        from rich.text import Text

        room = max(self._console.width - margin, 20)
        return [part.plain for part in Text(text).wrap(self._console, room)]


def _output() -> _Output:
    return _Terminal() if sys.stdout.isatty() else _Output()


def _cut(text: str, width: int) -> str:
    """Return a text of at most some cells, with an ellipsis in place of what is cut."""
    if _cells(text) <= width:
        return text
    from rich.cells import set_cell_size

    return set_cell_size(text, width - 1) + "…"


def _cells(text: str) -> int:
    if text.isascii():  # and printable
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)
