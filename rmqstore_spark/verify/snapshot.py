"""What a verification takes the store to be: as it stood when it began, the same for all pieces."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from rmqstore_spark.layout.index.format import IndexHeader
from rmqstore_spark.verify.findings import LISTED

__all__ = [
    "DELAY_LEVELS",
    "DLedgerUnits",
    "EntriesUnit",
    "IndexBounds",
    "IndexEntriesUnit",
    "IndexFileUnit",
    "LogUnit",
    "QueueBounds",
    "QueuesUnit",
    "Snapshot",
    "TailUnit",
    "Unit",
    "delays",
]

DELAY_LEVELS: Final = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
"""`messageDelayLevel` of a broker that was not told otherwise."""

_UNIT_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def delays(levels: str) -> tuple[int, ...]:
    """Milliseconds of each level of a broker's `messageDelayLevel`.

    Raises:
        ValueError: the text is no such setting.
    """
    found = []
    for level in levels.split():
        if level[-1] not in _UNIT_MS or not level[:-1].isdecimal():
            raise ValueError(f"{level!r} is no delay, such as 10s, 5m, 2h or 1d")
        found.append(int(level[:-1]) * _UNIT_MS[level[-1]])
    return tuple(found)


@dataclass(frozen=True)
class QueueBounds:
    """A queue, and the offsets that it had."""

    topic: str
    queue_id: int
    min_offset: int
    max_offset: int


@dataclass(frozen=True)
class IndexBounds:
    """An index file, as its header was.

    Attributes:
        path: the file.
        size: its bytes.
        slots: how many slots it has; 0 where it holds no key or that could not be found out.
        header: its header.
        keys: how many keys it holds, 0 where its slots are not known.
        vouched: its bytes are known to be on disk; else a crash may have left it unfinished, and
            a broker's start deletes it.
    """

    path: str
    size: int
    slots: int
    header: IndexHeader
    keys: int
    vouched: bool


@dataclass(frozen=True)
class Snapshot:
    """The store as all pieces of a verification see it.

    Attributes:
        begin: physical offset of the log's first byte.
        end: physical offset up to which the log is verified.
        being_written: a broker has it open.
        killed: a broker had it open, and ended without closing it.
        vouched_time: a message that was stored up to this time has its queue entries on disk, ms.
        queues: by topic and number.
        index: in the order of their creation.
        batch_queues: topics and numbers of queues of RocketMQ 5's other kind.
        configured_topics: those that topics.json names; None where there is no such file.
        delays: of the levels, ms.
        listed: how many problems of a kind are listed.
        flaws: stretches (from, to) of the log where no record stands, once they are known.
    """

    begin: int
    end: int
    being_written: bool
    killed: bool
    vouched_time: int
    queues: tuple[QueueBounds, ...]
    index: tuple[IndexBounds, ...]
    batch_queues: frozenset[tuple[str, int]]
    configured_topics: frozenset[str] | None
    delays: tuple[int, ...]
    listed: int = LISTED
    flaws: tuple[tuple[int, int], ...] = ()

    @cached_property
    def numbers(self) -> dict[tuple[str, int], int]:
        """Which of `queues` is the one of a topic and id."""
        return {(queue.topic, queue.queue_id): n for n, queue in enumerate(self.queues)}

    @cached_property
    def min_offsets(self) -> npt.NDArray[np.int64]:
        """Of each queue."""
        return np.array([queue.min_offset for queue in self.queues], np.int64)

    @cached_property
    def max_offsets(self) -> npt.NDArray[np.int64]:
        """Of each queue."""
        return np.array([queue.max_offset for queue in self.queues], np.int64)


@dataclass(frozen=True)
class LogUnit:
    """Whole files of the log, and what queues and index say of their records."""

    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start


@dataclass(frozen=True)
class TailUnit:
    """What the files hold behind the end of the log."""

    start: int
    end: int
    cause: str

    @property
    def size(self) -> int:
        return self.end - self.start


@dataclass(frozen=True)
class QueuesUnit:
    """The files of some queues, and their entries outside of what they hold."""

    first: int
    last: int
    size: int


@dataclass(frozen=True)
class IndexFileUnit:
    """One index file in itself."""

    number: int
    size: int


@dataclass(frozen=True)
class DLedgerUnits:
    """The index of a DLedger log in itself."""

    size: int


@dataclass(frozen=True)
class EntriesUnit:
    """Entries of a queue for which no record was met."""

    queue: int
    start: int
    end: int
    size: int = 0


@dataclass(frozen=True)
class IndexEntriesUnit:
    """Entries of an index file for which no record was met."""

    number: int
    start: int
    end: int
    size: int = 0


Unit: TypeAlias = (
    LogUnit | TailUnit | QueuesUnit | IndexFileUnit | DLedgerUnits | EntriesUnit | IndexEntriesUnit
)
