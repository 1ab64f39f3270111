"""Splits: small, picklable pieces of a read. One task reads each of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


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
