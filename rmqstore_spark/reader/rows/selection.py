"""Selects the queue entries to read."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmqstore_spark.layout.constants import SCHEDULE_TOPIC
from rmqstore_spark.layout.index.hashing import java_hash_code
from rmqstore_spark.layout.kernel.reference.entries import VOID_CODE
from rmqstore_spark.layout.queues.format import EntryColumns
from rmqstore_spark.layout.record.columns import Identity
from rmqstore_spark.layout.spans import I8, Spans, string_array
from rmqstore_spark.reader.options import QueueRange, ReadOptions
from rmqstore_spark.reader.queue import Queue

_log = logging.getLogger(__name__)

_FEW = 8  # tags for which comparing with each is cheaper than `isin`


@dataclass(frozen=True)
class Selection:
    """n entries of one or more queues, ascending by physical offset.

    Attributes:
        offsets: n physical offsets.
        sizes: n record sizes, bytes.
        queue: n numbers of queues: indexes into `topics` and `queue_ids`.
        slots: n queue offsets.
        topics: one span per queue.
        queue_ids: one per queue.
    """

    offsets: I8
    sizes: npt.NDArray[np.int32]
    queue: npt.NDArray[np.int32]
    slots: I8
    topics: Spans
    queue_ids: npt.NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.offsets)

    def take(self, rows: npt.NDArray[np.int64] | slice) -> Selection:
        """Return the given entries, in the given order."""
        return Selection(
            self.offsets[rows], self.sizes[rows], self.queue[rows], self.slots[rows],
            self.topics, self.queue_ids,
        )  # fmt: skip

    def entry_name(self, row: int) -> str:
        """Return what an error calls an entry."""
        queue = int(self.queue[row])
        topic = string_array(self.topics)[queue].as_py()
        return f"the entry {self.slots[row]} of queue {topic}/{self.queue_ids[queue]}"

    @property
    def identity(self) -> Identity:
        """The topic, queueId and queueOffset that each record must have."""
        return Identity(self.topics, self.queue_ids, self.queue, self.slots)


def say_lost(count: int, what: str) -> None:
    """Log that expired messages were skipped."""
    _log.warning("failOnDataLoss=false: skipped %d expired message(s) of %s", count, what)


def unexpired(
    queue: Queue, wanted: QueueRange, options: ReadOptions, *, tell: bool = True
) -> QueueRange:
    """Return a range without its expired messages, if the options allow to skip them.

    Args:
        tell: log how many messages are skipped.
    """
    if options.fail_on_data_loss or wanted.start >= queue.min_offset:
        return wanted
    start = min(queue.min_offset, wanted.end)
    if tell:
        say_lost(start - wanted.start, f"{queue.topic}/{queue.queue_id}")
    return replace(wanted, start=start)


def usable_entries(
    queue: Queue, first: int, last: int, options: ReadOptions
) -> tuple[EntryColumns, I8]:
    """Read entries of a queue, and their offsets, without void, empty and damaged entries.

    Raises:
        CorruptStoreError: an entry is empty or damaged, and the mode is FAILFAST.
    """
    slots = np.arange(first, last)
    if not options.fail_on_data_loss:
        size = queue.format.size
        there = queue.segments.covers(slots * size, np.full(len(slots), size))
        if not there.all():
            say_lost(int((~there).sum()), f"{queue.topic}/{queue.queue_id}")
            runs = np.split(slots[there], np.flatnonzero(np.diff(slots[there]) > 1) + 1)
            parts = [
                usable_entries(queue, int(run[0]), int(run[-1]) + 1, options)
                for run in runs
                if len(run)
            ]
            nothing = queue.live_columns(first, first), slots[:0]
            found, places = zip(nothing, *parts, strict=True)
            return EntryColumns.joined(found), np.concatenate(places)
    if options.mode == "FAILFAST":
        columns = queue.live_columns(first, last)
        counts = columns.codes != VOID_CODE
        if options.void is not None:
            options.void.note(queue.topic, queue.queue_id, slots[~counts])
        return (columns, slots) if counts.all() else (columns[counts], slots[counts])
    entries = queue.entries(first, last)
    live = queue.format.is_message(entries)
    is_void = queue.format.is_void(entries)
    if options.void is not None:
        options.void.note(queue.topic, queue.queue_id, slots[is_void])
    if bad := np.count_nonzero(~live & ~is_void):
        _log.warning(
            "DROPMALFORMED: left out %d empty or damaged entries of %s/%d from %d on",
            bad, queue.topic, queue.queue_id, first,
        )  # fmt: skip
    return queue.format.split(entries[live].tobytes())[0], slots[live]


class TagFilter:
    """Rules out records that cannot have one of the tags, by the tagsCode of their entry alone.

    Different tags can have the same hash code, so the records that pass must be checked themselves.
    """

    def __init__(self, tags: frozenset[str]) -> None:
        hashes = java_hash_code(pa.array(sorted(tags), pa.string()))
        self._codes = hashes.astype(np.int64)

    def may_match(self, queue: Queue, entries: EntryColumns) -> npt.NDArray[np.bool_]:
        """Return which of n entries can be those of a message with one of the tags."""
        if queue.topic == SCHEDULE_TOPIC:
            return np.ones(len(entries), np.bool_)  # tagsCode is a time in this topic
        codes = entries.codes
        passed = self._is_wanted(codes)
        addressed = np.flatnonzero(queue.format.in_units(codes))
        if len(addressed):
            passed[addressed] = self._units_may_match(queue, codes[addressed])
        return passed

    def _is_wanted(self, codes: I8) -> npt.NDArray[np.bool_]:
        if len(self._codes) > _FEW:
            return np.isin(codes, self._codes)
        wanted = np.zeros(len(codes), np.bool_)
        for code in self._codes:
            wanted |= codes == code
        return wanted

    def _units_may_match(self, queue: Queue, addresses: I8) -> npt.NDArray[np.bool_]:
        """Check the extension units at these addresses. A unit that is missing may match."""
        passed = np.ones(len(addresses), np.bool_)
        rows, heads = queue.unit_heads(addresses)
        passed[rows] = self._is_wanted(heads["tagsCode"].astype(np.int64))
        return passed
