"""Blocks that are in the log, on their way into queues and index."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Protocol

import numpy as np

from rmqstore_spark.engine.dispatch.queues import ConsumeQueues, Entries
from rmqstore_spark.layout.consumequeue import ENTRY_DTYPE
from rmqstore_spark.layout.record.block import Block, Route, index_hashes, queue_entries
from rmqstore_spark.layout.spans import I4, I8

__all__ = ["Appended", "AppendedTogether", "DispatchJob"]


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


@dataclass(frozen=True)
class Appended:
    """A block that is in the log.

    Attributes:
        block: its stamped records. If `hashes` is set, their bytes may be left out.
        physical_offset: n, where each starts in the log.
        queue_offset: n, the offset of each in its queue.
        store_timestamp: of all records, milliseconds.
        hashes: the keys of the records as `index_hashes` returns them, if they are known already.
    """

    block: Block
    physical_offset: I8
    queue_offset: I8
    store_timestamp: int
    hashes: tuple[I4, I4] | None = None

    @cached_property
    def size(self) -> int:
        """Bytes of its records."""
        return int(self.block.sizes.sum())

    def to_queues(self, queues: ConsumeQueues) -> None:
        """Write the records' entries."""
        for route, first, entries in self.runs():
            queues.append(route.topic, route.queue_id, entries, first)

    def runs(self) -> Iterator[tuple[Route, int, Entries]]:
        """Yield the entries of each route, and the queue offset of their first."""
        entries, bounds = queue_entries(self.block, self.physical_offset)
        first = self._first_offsets(len(bounds) - 1)
        for number, (begin, end) in enumerate(pairwise(bounds.tolist())):
            if begin < end:
                yield self.block.routes[number], int(first[number]), entries[begin:end]

    def keys(self) -> tuple[I4, I8, I8]:
        """Return the records' index keys."""
        block = self.block
        hashes, rows = self.hashes or index_hashes(block.data, block.starts, block.sizes)
        times = np.full(len(rows), self.store_timestamp, np.int64)
        return hashes, self.physical_offset[rows], times

    def _first_offsets(self, routes: int) -> I8:
        """Return the queue offset of the first queued record of each route."""
        rows = np.flatnonzero(self.block.queued)[::-1]
        first = np.zeros(routes, np.int64)
        first[self.block.route_of[rows]] = self.queue_offset[rows]
        return first

    @property
    def end(self) -> int:
        """Physical offset of the byte after its last record; 0 for an empty block."""
        if not len(self.physical_offset):
            return 0
        return int(self.physical_offset[-1]) + int(self.block.sizes[-1])


@dataclass(frozen=True)
class AppendedTogether:
    """Blocks that lie one after the other in the log. Each queue is written once for all of them.

    Attributes:
        blocks: at least one.
    """

    blocks: Sequence[Appended]

    @property
    def size(self) -> int:
        """Bytes of all records."""
        return sum(block.size for block in self.blocks)

    @property
    def store_timestamp(self) -> int:
        """The storeTimestamp of the last block."""
        return self.blocks[-1].store_timestamp

    @property
    def end(self) -> int:
        """Physical offset of the byte after the last record."""
        return max(block.end for block in self.blocks)

    def to_queues(self, queues: ConsumeQueues) -> None:
        """Write the records' entries."""
        waiting: dict[Route, _Run] = {}
        for block in self.blocks:
            for route, first, entries in block.runs():
                run = waiting.get(route)
                if run is None or run.end != first:
                    if run is not None:  # the queue begins again, or leaves slots out
                        run.write(queues, route)
                    run = waiting[route] = _Run(first, first)
                run.parts.append(entries)
                run.end += len(entries)
        for route, run in waiting.items():
            run.write(queues, route)

    def keys(self) -> tuple[I4, I8, I8]:
        """Return the records' index keys."""
        hashes, offsets, times = zip(*(block.keys() for block in self.blocks), strict=True)
        return np.concatenate(hashes), np.concatenate(offsets), np.concatenate(times)


@dataclass
class _Run:
    """Entries of a queue, from one offset to another, in parts."""

    first: int
    end: int
    parts: list[Entries] = field(default_factory=list)

    def write(self, queues: ConsumeQueues, route: Route) -> None:
        # NumPy would join the entries themselves in this machine's byte order.
        data = np.concatenate([part.view(np.uint8) for part in self.parts])
        queues.append(route.topic, route.queue_id, data.view(ENTRY_DTYPE), self.first)
