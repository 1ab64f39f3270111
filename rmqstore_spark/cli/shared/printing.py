"""Prints messages on stdout: as a table, as JSON lines, or only their bodies."""

from __future__ import annotations

import base64
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Final, Protocol

import typer

from rmqstore_spark.base.printable import shortened
from rmqstore_spark.cli.shared.parameters import AsJson
from rmqstore_spark.cli.shared.tables import (
    Column,
    Table,
    is_text,
    json_text,
    show_time,
    text_pieces,
)
from rmqstore_spark.errors import OptionError

if TYPE_CHECKING:
    import pyarrow as pa

_LONGEST_CELL: Final = 200
_LONGEST_CHAR: Final = 4  # bytes of UTF-8
_BASE64_PIECE: Final = 3 << 18  # a multiple of 3, so that pieces need no padding
_TABLE_BLOCK: Final = 1_000

_MAIN_COLUMNS: Final = (
    "topic", "queueId", "queueOffset", "storeTimestamp", "tags", "keys", "body",
)  # fmt: skip
_HEADINGS: Final = {"queueId": "queue", "queueOffset": "offset"}
_LEAST: Final = {
    "topic": 8, "tags": 6, "keys": 8, "body": 12, "properties": 12, "msgId": 12, "uniqKey": 12,
    "brokerName": 8,
}  # fmt: skip
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "\\": "\\"}


class Printer(Protocol):
    """Prints messages batch by batch.

    Attributes:
        columns: the columns that it needs.
    """

    columns: tuple[str, ...]

    def print(self, batch: pa.RecordBatch) -> None:
        """Print some messages, and flush the output."""
        ...


@dataclass(frozen=True)
class MessageOutput:
    """How a command prints messages."""

    columns: Annotated[
        str | None,
        typer.Option(
            "--columns",
            "-c",
            metavar="A,B,...",
            help="Columns to print, in this order.  [default: all in JSON, the main ones in a "
            "table]",
        ),
    ] = None
    as_json: AsJson = False
    as_raw: Annotated[
        bool,
        typer.Option("--raw", help="Print only the bodies, byte for byte, even to a terminal."),
    ] = False
    separator: Annotated[
        str,
        typer.Option(
            "--separator",
            metavar="TEXT",
            help="Text that --raw prints after each body; \\n, \\t, \\0 and \\\\ are understood.",
            show_default="nothing",
        ),
    ] = ""

    @property
    def is_table(self) -> bool:
        """Whether people read it."""
        return not (self.as_json or self.as_raw)

    def printer(self, *, single_topic: bool = False) -> Printer:
        """Return what prints so.

        Args:
            single_topic: whether a table may omit the topic.

        Raises:
            OptionError: the options contradict each other, or --columns is wrong.
        """
        columns = _parse_columns(self.columns)
        if self.as_raw and (self.as_json or columns):
            raise OptionError("Option --raw prints only bodies: remove --json and --columns.")
        if self.separator and not self.as_raw:
            raise OptionError("Option --separator needs --raw: add --raw, or remove --separator.")
        if self.as_raw:
            return _RawPrinter(_unescape(self.separator))
        if self.as_json:
            return _JsonPrinter(columns)
        main = _MAIN_COLUMNS[1:] if single_topic else _MAIN_COLUMNS
        return _TablePrinter(columns or main)


def _parse_columns(text: str | None) -> tuple[str, ...] | None:
    """Parse `--columns`; the reader reports unknown ones."""
    if text is None:
        return None
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names or len(set(names)) != len(names):
        raise OptionError(
            f"--columns {text!r} contains no column, or one twice. Write it like "
            "topic,queueOffset,body."
        )
    return tuple(names)


def print_batches(printer: Printer, batches: Iterable[pa.RecordBatch], most: int | None) -> int:
    """Print messages, `most` at most; return how many were printed."""
    count = 0
    for batch in batches:
        wanted = len(batch) if most is None else min(len(batch), most - count)
        if wanted:
            printer.print(batch.slice(0, wanted))
            count += wanted
        if count == most:
            break
    return count


def _unescape(text: str) -> bytes:
    plain = re.sub(r"\\([ntr0\\])", lambda match: _ESCAPES[match[1]], text)
    return plain.encode("utf-8", "surrogateescape")


class _RawPrinter:
    def __init__(self, separator: bytes) -> None:
        self.columns: tuple[str, ...] = ("body",)
        self._separator = separator

    def print(self, batch: pa.RecordBatch) -> None:
        sys.stdout.flush()
        out = sys.stdout.buffer
        for body in batch.column("body"):
            out.write(body.as_buffer())
            out.write(self._separator)
        out.flush()


class _JsonPrinter:
    def __init__(self, columns: Sequence[str] | None) -> None:
        from rmqstore_spark.layout.record.columns import COLUMNS

        self.columns = tuple(columns or COLUMNS)

    def print(self, batch: pa.RecordBatch) -> None:
        for row in _rows(batch):
            sys.stdout.writelines(_document(row))
        sys.stdout.flush()


def _document(row: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line of JSON in pieces, so that the text of a large body is never held as a whole."""
    names = list(row)
    at = names.index("body") if "body" in row else len(names)
    before = {name: _shown(row[name]) for name in names[:at]}
    after = {name: _shown(row[name]) for name in names[at + 1 :]}
    yield json_text(before)[:-1]
    if "body" in row:
        yield "," if before else ""
        yield from _body(row["body"].as_buffer())
        yield "," if after else ""
    yield json_text(after)[1:] + "\n"


def _shown(value: Any) -> Any:
    return show_time(value) if isinstance(value, datetime) else value


def _body(value: pa.Buffer) -> Iterator[str]:
    body = memoryview(value).cast("B")
    as_text = is_text(body)
    yield '"body":"'
    if as_text:
        for text in text_pieces(body):
            yield json_text(text)[1:-1]
    else:
        for first in range(0, len(body), _BASE64_PIECE):
            yield base64.b64encode(body[first : first + _BASE64_PIECE]).decode()
    yield f'","bodyEncoding":"{"utf-8" if as_text else "base64"}"'


def _rows(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """Yield the messages of a batch; their bodies are scalars, whose bytes stay in the batch."""
    rest = [name for name in batch.schema.names if name != "body"]
    rows = batch.select(rest).to_pylist(maps_as_pydicts="lossy") if rest else [{}] * len(batch)
    if len(rest) == len(batch.schema):
        yield from rows
        return
    for row, body in zip(rows, batch.column("body"), strict=True):
        whole = {**row, "body": body}
        yield {name: whole[name] for name in batch.schema.names}


class _TablePrinter:
    def __init__(self, columns: tuple[str, ...]) -> None:
        self.columns = columns
        self._table: Table | None = None

    def print(self, batch: pa.RecordBatch) -> None:
        if self._table is None:
            self._table = Table([_heading(field) for field in batch.schema])
        for first in range(0, len(batch), _TABLE_BLOCK):
            rows = _rows(batch.slice(first, _TABLE_BLOCK))
            self._table.rows([_cell(value) for value in row.values()] for row in rows)
        sys.stdout.flush()


def _heading(field: pa.Field) -> Column:
    import pyarrow as pa

    name = _HEADINGS.get(field.name, field.name)
    return Column(name, pa.types.is_integer(field.type), _LEAST.get(field.name))


def _cell(value: Any) -> str:
    """Return a value as a cell of a table; long values are cut."""
    import pyarrow as pa

    if value is None:
        return "-"
    if isinstance(value, datetime):
        return show_time(value)
    if isinstance(value, pa.BinaryScalar):
        return _body_cell(memoryview(value.as_buffer()).cast("B"))
    if isinstance(value, list):
        return shortened(" ".join(value), _LONGEST_CELL)
    if isinstance(value, dict):
        return shortened(" ".join(f"{k}={v}" for k, v in value.items()), _LONGEST_CELL)
    return shortened(str(value), _LONGEST_CELL)


def _body_cell(body: memoryview) -> str:
    if not is_text(body):
        return shortened("hex:" + body[: _LONGEST_CELL // 2].hex(), _LONGEST_CELL)
    start = bytes(body[: _LONGEST_CELL * _LONGEST_CHAR])
    return shortened(start.decode("utf-8", "ignore"), _LONGEST_CELL)
