"""What is dispatched: blocks of records that are in the log."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Protocol

import numpy as np

from rmqstore_spark.engine.dispatch.queues import ConsumeQueues
from rmqstore_spark.layout.record.block import Block, index_hashes
from rmqstore_spark.layout.record.single import SingleRecord
from rmqstore_spark.layout.spans import I4, I8


class DispatchJob(Protocol):
    """Records that are in the log, and belong into queues and index."""

    @property
    def size(self) -> int:
        """Bytes of the records."""
        ...

    @property
    def store_timestamp(self) -> int:
        """The storeTimestamp of the last record, milliseconds."""
        ...

    @property
    def end(self) -> int:
        """Physical offset of the byte after the last record; 0 without records."""
        ...

    def to_queues(self, queues: ConsumeQueues, /) -> None:
        """Write the records' entries. After a failure it is called again."""
        ...

    def keys(self) -> tuple[I4, I8, I8]:
        """Return hash, physical offset and storeTimestamp of each index key of the records."""
        ...


_NO_KEYS: Final = np.empty(0, np.int32), np.empty(0, np.int64), np.empty(0, np.int64)


@dataclass(slots=True)
class SingleAppended:
    """A single record that is in the log.

    Attributes:
        record: the record, stamped.
        physical_offset, queue_offset: where it is.
        store_timestamp: milliseconds.
        size: its bytes.
        end: physical offset of the byte after it.
    """

    record: SingleRecord
    physical_offset: int
    queue_offset: int
    store_timestamp: int
    size: int
    end: int

    def to_queues(self, queues: ConsumeQueues) -> None:
        """Write the record's entry."""
        record = self.record
        entry = queues.format.packed(self.physical_offset, self.size, record.tags_code)
        queues.append_bytes(*record.route, entry, 1, self.queue_offset)

    def keys(self) -> tuple[I4, I8, I8]:
        """Return the record's index keys."""
        hashes = self.record.keys
        if not hashes:
            return _NO_KEYS
        count = len(hashes)
        return (
            np.array(hashes, np.int32),
            np.full(count, self.physical_offset, np.int64),
            np.full(count, self.store_timestamp, np.int64),
        )


@dataclass(slots=True)
class Appended:
    """A block that is in the log.

    Attributes:
        block: its stamped records. If `hashes` is set, their bytes may be left out.
        physical_offset: n, where each starts in the log.
        queue_offset: n, the offset of each in its queue.
        store_timestamp: of all records, milliseconds.
        hashes: the keys of the records as `index_hashes` returns them, if they are known already.
        first_offsets: the offset of the first queued record of each of the block's routes, if they
            are known already.
    """

    block: Block
    physical_offset: I8
    queue_offset: I8
    store_timestamp: int
    hashes: tuple[I4, I4] | None = None
    first_offsets: I8 | None = None

    @property
    def size(self) -> int:
        """Bytes of its records."""
        return int(np.add.reduce(self.block.sizes))

    def to_queues(self, queues: ConsumeQueues) -> None:
        """Write the records' entries."""
        entries, bounds = queues.format.of_block(self.block, self.physical_offset)
        assert int(bounds[-1]) == len(entries), "not each entry of a block has its queue"
        first = self.first_offsets
        if first is None:
            first = self._first_offsets(len(bounds) - 1)
        pieces = pairwise(bounds.tolist())
        for route, offset, (begin, end) in zip(
            self.block.routes, first.tolist(), pieces, strict=True
        ):
            if begin < end:
                queues.append(route.topic, route.queue_id, entries[begin:end], offset)

    def keys(self) -> tuple[I4, I8, I8]:
        """Return the records' index keys."""
        block = self.block
        known = self.hashes or block.hashes
        hashes, rows = known or index_hashes(block.data, block.starts, block.sizes)
        times = np.empty(len(rows), np.int64)
        times.fill(self.store_timestamp)
        return hashes, self.physical_offset[rows], times

    def _first_offsets(self, routes: int) -> I8:
        """Return the queue offset of the first queued record of each route."""
        rows = self.block.queued.nonzero()[0][::-1]
        first = np.zeros(routes, np.int64)
        first[self.block.route_of[rows]] = self.queue_offset[rows]
        return first

    @property
    def end(self) -> int:
        """Physical offset of the byte after its last record; 0 for an empty block."""
        if not len(self.physical_offset):
            return 0
        return int(self.physical_offset[-1]) + int(self.block.sizes[-1])
