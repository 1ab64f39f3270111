"""What a read is asked for: its options, and its splits, the pieces that tasks read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from rmqstore_spark.errors import OptionError
from rmqstore_spark.layout.record.columns import COLUMNS
from rmqstore_spark.reader.void import VoidEntries


@dataclass(frozen=True)
class ReadOptions:
    """Options for reading messages.

    Args:
        columns: names from COLUMNS, in the order of the result; all of them by default.
        body_as_text: return the body as a string; bytes that are not UTF-8 become U+FFFD.
        decompress: decompress compressed bodies.
        check_crc: check each body against its bodyCRC when `body` is among the columns, and each
            record against the CRC of the whole record if RocketMQ 5.x wrote one.
        mode: how to handle a damaged record: FAILFAST raises, DROPMALFORMED skips and counts it.
        fail_on_data_loss: raise if messages of the range have expired; otherwise skip and log them.
        tags: read only messages with one of these tags; None for all.
        keys: read only messages with one of these keys; None for all.
        batch_rows: maximum number of rows in a batch.
        batch_bytes: approximate number of bytes of the log that go into a batch.
        void: takes note of the void entries of queues; None if nobody wants to know.
    """

    columns: tuple[str, ...] = tuple(COLUMNS)
    body_as_text: bool = False
    decompress: bool = True
    check_crc: bool = True
    mode: Literal["FAILFAST", "DROPMALFORMED"] = "FAILFAST"
    fail_on_data_loss: bool = True
    tags: frozenset[str] | None = None
    keys: frozenset[str] | None = None
    batch_rows: int = 10_000
    batch_bytes: int = 16 << 20
    void: VoidEntries | None = None

    def __post_init__(self) -> None:
        unknown = [name for name in self.columns if name not in COLUMNS]
        if unknown:
            raise OptionError(
                f"Unknown columns: {', '.join(unknown)}. The columns are {', '.join(COLUMNS)}."
            )
        for name in ("tags", "keys"):
            if isinstance(getattr(self, name), str):
                raise OptionError(
                    f"{name} must be a set of {name}, not a text. Parse a text with "
                    f"reader.texts.parse_{name}."
                )
        if self.batch_rows < 1 or self.batch_bytes < 1:
            raise OptionError("batch_rows and batch_bytes must be at least 1.")
        if self.mode not in ("FAILFAST", "DROPMALFORMED"):
            raise OptionError(f"mode must be FAILFAST or DROPMALFORMED, not {self.mode!r}.")


@dataclass(frozen=True, order=True)
class QueueRange:
    """Offsets `start` to `end - 1` of one queue."""

    topic: str
    queue_id: int
    start: int
    end: int

    @property
    def count(self) -> int:
        return max(0, self.end - self.start)


@dataclass(frozen=True)
class QueueSplit:
    """A range of one queue. `size` estimates its bytes in the log."""

    range: QueueRange
    size: int


@dataclass(frozen=True)
class LogSplit:
    """The messages of some queue ranges that lie from `start` to `end - 1` in the log.

    Attributes:
        ranges: the queue ranges.
        continued: numbers of the ranges whose earlier messages belong to another split. Of the
            other ranges, all messages up to `end` belong to this split, whatever physical offset a
            damaged entry states.
        unfinished: numbers of the ranges whose later messages belong to another split. Of
            the other ranges, all messages from `start` belong to this split.
    """

    start: int
    end: int
    ranges: tuple[QueueRange, ...]
    continued: tuple[int, ...] = ()
    unfinished: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        return self.end - self.start


@dataclass(frozen=True)
class ScanSplit:
    """All records that begin from `start` to `end - 1` in the log. Queues are not used.

    Attributes:
        topics: read only records of these topics; None for all.
    """

    start: int
    end: int
    topics: frozenset[str] | None = None

    @property
    def size(self) -> int:
        return self.end - self.start


@dataclass(frozen=True)
class KeySplit:
    """The messages of some queue ranges, from `start` to `end - 1` in the log, that have a key.

    The keys are in the options of the read.

    Attributes:
        start: where a unit of the log begins (`CommitLog.unit_start`).
    """

    start: int
    end: int
    ranges: tuple[QueueRange, ...]

    @property
    def size(self) -> int:
        return self.end - self.start


Split: TypeAlias = QueueSplit | LogSplit | ScanSplit | KeySplit
