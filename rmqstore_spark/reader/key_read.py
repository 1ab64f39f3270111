"""Reads the messages with a key that the queues hold, through the index.

The index names records, and knows them by their own topic alone. But a record can be in several
queues (light queues), or in none. So each record that is found is looked up in all queues that it
names. It counts in those whose entry points to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rmqstore_spark.errors import CorruptStoreError, OptionError, SegmentExpiredError
from rmqstore_spark.layout.record.dispatches import dispatches
from rmqstore_spark.layout.record.format import Records
from rmqstore_spark.layout.spans import I8, string_array, text_pool
from rmqstore_spark.reader.key_search import KeySearch, KeyWanted, index_pieces, known_topics
from rmqstore_spark.reader.options import KeySplit, QueueRange, ReadOptions
from rmqstore_spark.reader.rows.read import read_entries_of
from rmqstore_spark.reader.rows.selection import Selection, say_lost

if TYPE_CHECKING:
    from rmqstore_spark.reader.store import Store

_COLUMNS: Final = (
    ("offsets", np.int64), ("sizes", np.int32), ("queue", np.int32), ("slots", np.int64),
)  # fmt: skip


def read_key_split(store: Store, split: KeySplit, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """Read the messages of a split that have one of `options.keys`, in the order of the log.

    Raises:
        OptionError: the options have no keys.
        SegmentExpiredError: messages of the ranges have expired, and `fail_on_data_loss` is set.
        CorruptStoreError: the log is damaged, and the mode is FAILFAST.
    """
    if options.keys is None:
        raise OptionError("No keys given: set keys to read messages by key.")
    holders = _Holders(store, split.ranges)
    holders.report_expired(options)
    selection = _found(store, split, options, holders)
    yield from read_entries_of(store, iter([selection]), options)


def _found(store: Store, split: KeySplit, options: ReadOptions, holders: _Holders) -> Selection:
    topics = known_topics(store) | {wanted.topic for wanted in split.ranges}
    wanted = KeyWanted(options.keys or frozenset(), topics)
    while True:
        begin = store.log.min_offset
        search = KeySearch(store, wanted, options)
        try:
            found = search.run(index_pieces(store, split.start, split.end))
            return holders.joined([holders.places(records) for records in found])
        except SegmentExpiredError:
            store.refresh(topology=False)
            if options.fail_on_data_loss or store.log.min_offset == begin:
                raise


class _Holders:
    """The queues of some ranges, with a check which records they hold."""

    def __init__(self, store: Store, ranges: tuple[QueueRange, ...]) -> None:
        self._log = store.log
        self._ranges = ranges
        self._queues = [store.queue(wanted.topic, wanted.queue_id) for wanted in ranges]
        names = sorted({wanted.topic for wanted in ranges})
        numbers = {name: number for number, name in enumerate(names)}
        self._names = pa.array(names, pa.string())
        self._ranges_of: dict[tuple[int, int], list[int]] = {}
        for number, wanted in enumerate(ranges):
            place = numbers[wanted.topic], wanted.queue_id
            self._ranges_of.setdefault(place, []).append(number)
        self._topics = text_pool([wanted.topic for wanted in ranges])
        self._queue_ids = np.array([wanted.queue_id for wanted in ranges], np.int32)

    def report_expired(self, options: ReadOptions) -> None:
        """Raise if a range begins with expired messages, or log how many there are."""
        for queue, wanted in zip(self._queues, self._ranges, strict=True):
            if not wanted.count:
                continue
            try:
                first = queue.physical_offset(wanted.start)
                if first >= self._log.min_offset:
                    continue
                error: Exception = self._log.gone(first)
            except SegmentExpiredError as gone:
                error = gone
            except CorruptStoreError:
                continue  # the damaged entry may belong to a message with another key
            if options.fail_on_data_loss:
                raise error
            lost = min(queue.min_offset, wanted.end) - wanted.start
            say_lost(lost, f"{queue.topic}/{queue.queue_id}")

    def places(self, records: Records) -> Selection:
        """Return the entries of n records in the ranges, in arbitrary order."""
        rows, names, queue_ids, slots = dispatches(records)
        rows = np.concatenate([np.arange(len(records)), rows])
        names = pa.concat_arrays([string_array(records.topic), names])
        queue_ids = np.concatenate([records.queue_id, queue_ids]).astype(np.int64)
        slots = np.concatenate([records.queue_offset, slots])
        topics = pc.fill_null(pc.index_in(names, value_set=self._names), -1).to_numpy()
        codes = topics.astype(np.int64) << 32 | queue_ids & 0xFFFFFFFF
        order = np.argsort(codes, kind="stable")
        edges = np.flatnonzero(np.diff(codes[order])) + 1
        parts = [(np.empty(0, np.int32), np.empty(0, np.int64))]
        for group in np.split(order, edges):
            if not len(group):
                continue
            place = int(topics[group[0]]), int(queue_ids[group[0]])
            for number in self._ranges_of.get(place, ()):
                held = group[self._holds(number, slots[group], records.take(rows[group]))]
                parts.append((np.full(len(held), number, np.int32), held))
        queue, kept = (np.concatenate(column) for column in zip(*parts, strict=True))
        return Selection(
            records.physical_offset[rows[kept]], records.store_size[rows[kept]], queue,
            slots[kept], self._topics, self._queue_ids,
        )  # fmt: skip

    def _holds(self, number: int, slots: I8, records: Records) -> npt.NDArray[np.bool_]:
        """Return which of n records a range holds in these slots."""
        wanted, queue = self._ranges[number], self._queues[number]
        held = (slots >= wanted.start) & (slots < wanted.end)
        there, entries = queue.entries_in(slots[held])
        held[held] = there
        same = entries["physicalOffset"] == records.physical_offset[held]
        same &= entries["size"] == records.store_size[held]
        held[held] = same & queue.format.is_message(entries)
        return held

    def joined(self, parts: list[Selection]) -> Selection:
        """Join selections into one, in the order of the log, with each message once."""
        offsets, sizes, queue, slots = (
            np.concatenate([getattr(part, name) for part in parts] + [np.empty(0, kind)])
            for name, kind in _COLUMNS
        )
        order = np.lexsort((slots, queue, offsets))
        queue, slots = queue[order], slots[order]
        first = np.ones(len(order), np.bool_)
        first[1:] = (queue[1:] != queue[:-1]) | (slots[1:] != slots[:-1])
        order = order[first]
        return Selection(
            offsets[order], sizes[order], queue[first], slots[first], self._topics, self._queue_ids
        )
