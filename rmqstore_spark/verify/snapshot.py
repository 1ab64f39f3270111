"""Defines the snapshot of a store that all units of a verification share, and the units."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from rmqstore_spark.layout.index.format import IndexHeader
from rmqstore_spark.verify.findings import LISTED


@dataclass(frozen=True)
class QueueBounds:
    """A queue and its offsets at the start of the verification."""

    topic: str
    queue_id: int
    min_offset: int
    max_offset: int


@dataclass(frozen=True)
class IndexBounds:
    """An index file and its header at the start of the verification.

    Attributes:
        path: the file.
        size: its size in bytes.
        slots: number of its slots; 0 if it holds no key, or if the number could not be determined.
        header: its header.
        keys: number of its keys; 0 if `slots` is 0.
        vouched: its bytes are known to be on disk. Otherwise a crash may have left it unfinished,
            and a broker's start deletes it.
    """

    path: str
    size: int
    slots: int
    header: IndexHeader
    keys: int
    vouched: bool


@dataclass(frozen=True)
class Snapshot:
    """The store as all units of a verification see it.

    Attributes:
        begin: physical offset of the log's first byte.
        end: physical offset up to which the log is verified.
        file_end: physical offset at which its last file ends, at its full length.
        being_written: a broker has the store open.
        killed: a broker had the store open, and was killed.
        vouched_time: the queue entries of messages stored up to this time are on disk, ms.
        queues: the queues, by topic and queueId.
        index: the index files, in the order of their creation.
        batch_queues: topics and numbers of RocketMQ 5's batch queues.
        configured_topics: the topics in topics.json; None if it is missing or cannot be used.
        deleted: by topic, the physical offset up to which its records were deleted with it.
        delays: the delay of each level, ms.
        listed: how many problems of a kind are listed.
        flaws: stretches (from, to) of the log that hold no record, once they are known.
    """

    begin: int
    end: int
    file_end: int
    being_written: bool
    killed: bool
    vouched_time: int
    queues: tuple[QueueBounds, ...]
    index: tuple[IndexBounds, ...]
    batch_queues: frozenset[tuple[str, int]]
    configured_topics: frozenset[str] | None
    deleted: Mapping[str, int]
    delays: tuple[int, ...]
    listed: int = LISTED
    flaws: tuple[tuple[int, int], ...] = ()

    @cached_property
    def numbers(self) -> dict[tuple[str, int], int]:
        """The position in `queues` of each topic and queueId."""
        return {(queue.topic, queue.queue_id): n for n, queue in enumerate(self.queues)}

    @cached_property
    def min_offsets(self) -> npt.NDArray[np.int64]:
        """The minimum offset of each queue."""
        return np.array([queue.min_offset for queue in self.queues], np.int64)

    @cached_property
    def max_offsets(self) -> npt.NDArray[np.int64]:
        """The maximum offset of each queue."""
        return np.array([queue.max_offset for queue in self.queues], np.int64)


@dataclass(frozen=True)
class LogUnit:
    """Whole files of the log, with the queue entries and index keys of their records."""

    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start


@dataclass(frozen=True)
class TailUnit:
    """The bytes of the log's files after the end of the log."""

    start: int
    end: int
    cause: str

    @property
    def size(self) -> int:
        return self.end - self.start


@dataclass(frozen=True)
class QueuesUnit:
    """The files of some queues, and their entries outside of the queues' offsets."""

    first: int
    last: int
    size: int


@dataclass(frozen=True)
class IndexFileUnit:
    """An index file by itself."""

    number: int
    size: int


@dataclass(frozen=True)
class DLedgerUnits:
    """The index of a DLedger log by itself."""

    size: int


@dataclass(frozen=True)
class EntriesUnit:
    """Entries of a queue that no record matched."""

    queue: int
    start: int
    end: int
    size: int = 0


@dataclass(frozen=True)
class IndexEntriesUnit:
    """Entries of an index file that no record matched."""

    number: int
    start: int
    end: int
    size: int = 0


Unit: TypeAlias = (
    LogUnit | TailUnit | QueuesUnit | IndexFileUnit | DLedgerUnits | EntriesUnit | IndexEntriesUnit
)
