"""Makes complete stores as a broker lays them out, from a few messages to many gigabytes.

`StoreBuilder` appends batches of messages to a store; `traffic.Traffic` makes messages up. What a
store must look like is told by RocketMQ's own stores (`golden`), never by one that was made here:
these serve where a golden store is too small, or not of the shape that is wanted.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rmqstore_spark.layout.checkpoint import Checkpoint
from rmqstore_spark.layout.constants import (
    BLANK_SIZE,
    PROPERTY_KEYS,
    PROPERTY_TAGS,
    PROPERTY_UNIQ_KEY,
    TRANSACTION_COMMIT_TYPE,
    TRANSACTION_MASK,
    TRANSACTION_NOT_TYPE,
    TRANSACTION_ROLLBACK_TYPE,
)
from rmqstore_spark.layout.index.build import IndexFile
from rmqstore_spark.layout.index.format import HEADER_SIZE, IndexHeader
from rmqstore_spark.layout.index.hashing import index_key_hash, java_hash_code
from rmqstore_spark.layout.queues.consumequeue import CONSUME_QUEUE
from rmqstore_spark.layout.record.encode import RECORD_COLUMNS, encode_records
from rmqstore_spark.layout.record.format import encode_blank
from rmqstore_spark.layout.record.properties import encode_properties, find_properties, split_keys
from rmqstore_spark.layout.spans import Spans, array_spans, string_array
from tests.support.messages.traffic import FIRST_TIME, Traffic

__all__ = ["FIRST_TIME", "StoreBuilder", "Traffic", "build_store"]

_HELD_ENTRIES: Final = 4_000_000

_DEFAULTS: Final[dict[str, Any]] = {
    "queueId": 0,
    "flag": 0,
    "sysFlag": 0,
    "bornHost": "192.168.1.20:51234",
    "storeHost": "192.168.1.10:10911",
    "reconsumeTimes": 0,
    "preparedTransactionOffset": 0,
    "body": b"",
    "properties": b"",
}

Rows = npt.NDArray[np.int64]


class StoreBuilder:
    """Writes a store, which can be read whenever `flush` was called. One writer, not a broker.

    Args:
        path: the store; made with its parents.
        segment_size: bytes of a CommitLog file (`mappedFileSizeCommitLog`).
        queue_entries: entries of a ConsumeQueue file (300,000 in a broker).
        index: slots and entries of an index file; None for a store without an index.
        abort: let the store look like one that a broker runs on, until `close`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        segment_size: int = 1 << 30,
        queue_entries: int = 300_000,
        index: tuple[int, int] | None = None,
        abort: bool = False,
    ) -> None:
        self.path = Path(path)
        self._segment_size = segment_size
        self._queue_size = queue_entries * CONSUME_QUEUE.size
        self._index_shape = index
        self._index: IndexFile | None = None
        self._index_names: set[str] = set()
        self._index_flushed = 0
        self.end_offset = 0
        """Physical offset of the next record, if it fits into its segment."""
        self.last_timestamp = FIRST_TIME - 1
        self._numbers: dict[tuple[str, int], int] = {}
        self._next_offsets = np.zeros(0, np.int64)
        self._held: list[tuple[Rows, npt.NDArray[np.void], Rows]] = []
        for folder in ("commitlog", "consumequeue", "config", *(["index"] if index else [])):
            (self.path / folder).mkdir(parents=True, exist_ok=True)
        (self.path / "lock").write_bytes(b"lock")
        if abort:
            (self.path / "abort").touch()

    def __enter__(self) -> StoreBuilder:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def append(self, messages: pa.RecordBatch) -> pa.RecordBatch:
        """Store messages, in their order.

        A prepared or rolled-back record (sysFlag) gets no queue entry, and queueOffset 0.

        Args:
            messages: n rows with `topic` and whichever others of RECORD_COLUMNS are wanted; the
                others get defaults, times advance by a millisecond a message. `properties` may be a
                map too. What queueOffset and physicalOffset say is not looked at.

        Returns:
            RECORD_COLUMNS as they were stored, and `storeSize`.
        """
        columns = self._completed(messages)
        queues = self._queue_numbers(columns["topic"], columns["queueId"])
        kinds = columns["sysFlag"].to_numpy() & TRANSACTION_MASK
        queued = np.isin(kinds, (TRANSACTION_NOT_TYPE, TRANSACTION_COMMIT_TYPE))
        slots = np.zeros(len(messages), np.int64)
        slots[queued] = self._take_slots(queues[queued])
        columns["queueOffset"] = pa.array(slots)
        sizes = _record_sizes(columns)
        columns["physicalOffset"] = pa.array(self._place(sizes))
        batch = pa.RecordBatch.from_pydict({name: columns[name] for name in RECORD_COLUMNS})
        encoded = encode_records(batch)
        if not np.array_equal(encoded.sizes, sizes):
            raise AssertionError("records came out in other sizes than they were placed by")
        self._write_log(batch["physicalOffset"].to_numpy(), encoded.starts, sizes, encoded.data)
        found = find_properties(
            array_spans(batch["properties"]), (PROPERTY_TAGS, PROPERTY_KEYS, PROPERTY_UNIQ_KEY)
        )
        self._hold_entries(batch, queued, queues, sizes, found[PROPERTY_TAGS])
        if self._index_shape is not None:
            rows = np.flatnonzero(kinds != TRANSACTION_ROLLBACK_TYPE)
            self._put_keys(batch, rows, found[PROPERTY_UNIQ_KEY], found[PROPERTY_KEYS])
        if len(batch):
            self.last_timestamp = int(batch["storeTimestamp"].to_numpy()[-1])
        return batch.append_column("storeSize", pa.array(sizes.astype(np.int32)))

    def flush(self) -> None:
        """Write what is held back: queue entries, the index, the checkpoint, `topics.json`."""
        self._write_entries()
        if self._index is not None:
            self._write_index(self._index)
        self._write_checkpoint()
        self._write_topics()

    def close(self) -> None:
        """Flush, and leave the store as a clean shutdown does."""
        self.flush()
        (self.path / "abort").unlink(missing_ok=True)

    def _completed(self, messages: pa.RecordBatch) -> dict[str, pa.Array]:
        n = len(messages)
        columns: dict[str, pa.Array] = {}
        for name, kind in RECORD_COLUMNS.items():
            if name in messages.schema.names:
                column = messages[name]
                if pa.types.is_map(column.type):
                    column = encode_properties(column)
                columns[name] = column.cast(kind)
            elif name in _DEFAULTS:
                columns[name] = pa.repeat(pa.scalar(_DEFAULTS[name], kind), n)
        if "storeTimestamp" not in columns:
            first = self.last_timestamp + 1
            columns["storeTimestamp"] = pa.array(np.arange(first, first + n))
        columns.setdefault("bornTimestamp", columns["storeTimestamp"])
        return columns

    # ---- queues --------------------------------------------------------------------------------

    def _queue_numbers(self, topics: pa.StringArray, queue_ids: pa.Int32Array) -> Rows:
        """A number for each queue, n of them for n messages."""
        coded = topics.dictionary_encode()
        names = coded.dictionary.to_pylist()
        pairs = coded.indices.to_numpy().astype(np.int64) << 32 | queue_ids.to_numpy()
        different, inverse = np.unique(pairs, return_inverse=True)
        numbers = [
            self._numbers.setdefault((names[pair >> 32], pair & 0xFFFFFFFF), len(self._numbers))
            for pair in different.tolist()
        ]
        return np.array(numbers, np.int64)[inverse.ravel()]

    def _take_slots(self, queues: Rows) -> Rows:
        """The queue offset of each message."""
        grown = np.zeros(len(self._numbers), np.int64)
        grown[: len(self._next_offsets)] = self._next_offsets
        order = np.argsort(queues, kind="stable")
        in_order = queues[order]
        first = np.searchsorted(in_order, in_order)
        slots = np.empty(len(queues), np.int64)
        slots[order] = grown[in_order] + np.arange(len(queues)) - first
        self._next_offsets = grown + np.bincount(queues, minlength=len(grown))
        return slots

    def _hold_entries(
        self, batch: pa.RecordBatch, queued: npt.NDArray[np.bool_], queues: Rows, sizes: Rows,
        tags: Spans,
    ) -> None:  # fmt: skip
        entries = np.empty(len(batch), CONSUME_QUEUE.dtype)
        entries["physicalOffset"] = batch["physicalOffset"].to_numpy()
        entries["size"] = sizes
        entries["tagsCode"] = java_hash_code(string_array(tags))
        slots = batch["queueOffset"].to_numpy()
        self._held.append((queues[queued], entries[queued], slots[queued]))
        if sum(len(held) for held, _, _ in self._held) >= _HELD_ENTRIES:
            self._write_entries()

    def _write_entries(self) -> None:
        if not self._held:
            return
        numbers, parts, places = zip(*self._held, strict=True)
        queues, slots = np.concatenate(numbers), np.concatenate(places)
        # Without a type the byte order changes.
        entries = np.concatenate(parts, dtype=CONSUME_QUEUE.dtype)
        self._held.clear()
        order = np.argsort(queues, kind="stable")
        queues, entries, slots = queues[order], entries[order], slots[order]
        keys = list(self._numbers)
        edges = [0, *(np.flatnonzero(np.diff(queues)) + 1).tolist(), len(queues)]
        for first, last in itertools.pairwise(edges):
            if first == last:
                continue
            topic, queue_id = keys[queues[first]]
            folder = self.path / "consumequeue" / topic / str(queue_id)
            at = int(slots[first]) * CONSUME_QUEUE.size
            _write_segments(folder, self._queue_size, at, entries[first:last].view(np.uint8))

    # ---- the log -------------------------------------------------------------------------------

    def _place(self, sizes: Rows) -> Rows:
        """The physical offset of each record: none straddles two segments."""
        if len(sizes) and int(sizes.max()) + BLANK_SIZE > self._segment_size:
            raise ValueError(f"a record of {sizes.max()} bytes needs larger segments")
        ends = np.cumsum(sizes)
        offsets = np.empty(len(sizes), np.int64)
        first = 0
        while first < len(sizes):
            before = int(ends[first - 1]) if first else 0
            room = self._segment_size - self.end_offset % self._segment_size - BLANK_SIZE
            last = int(np.searchsorted(ends, before + room, side="right"))
            offsets[first:last] = self.end_offset + ends[first:last] - sizes[first:last] - before
            self.end_offset += int(ends[last - 1]) - before if last > first else 0
            if last < len(sizes):
                self._write_blank()
            first = last
        return offsets

    def _write_blank(self) -> None:
        left = self._segment_size - self.end_offset % self._segment_size
        blank = np.frombuffer(encode_blank(left), np.uint8)
        _write_segments(self.path / "commitlog", self._segment_size, self.end_offset, blank)
        self.end_offset += left

    def _write_log(
        self, offsets: Rows, starts: Rows, sizes: Rows, data: npt.NDArray[np.uint8]
    ) -> None:
        edges = [0, *(np.flatnonzero(np.diff(offsets // self._segment_size)) + 1), len(offsets)]
        for first, last in itertools.pairwise(edges):
            if first < last:
                part = data[starts[first] : starts[last - 1] + sizes[last - 1]]
                at = int(offsets[first])
                _write_segments(self.path / "commitlog", self._segment_size, at, part)

    # ---- the index -----------------------------------------------------------------------------

    def _put_keys(self, batch: pa.RecordBatch, rows: Rows, uniq: Spans, keys: Spans) -> None:
        """Put in each record's UNIQ_KEY, then its KEYS."""
        uniq_rows = rows[uniq.lengths[rows] >= 0]
        lists = split_keys(keys.take(rows))
        key_rows = rows[pc.list_parent_indices(lists).to_numpy()]
        owner = np.concatenate([uniq_rows, key_rows])
        order = np.argsort(owner, kind="stable")
        texts = pa.concat_arrays([string_array(uniq.take(uniq_rows)), lists.flatten()])
        owner, texts = owner[order], texts.take(pa.array(order))
        hashes = index_key_hash(batch["topic"].take(pa.array(owner)), texts)
        offsets = batch["physicalOffset"].to_numpy()[owner]
        times = batch["storeTimestamp"].to_numpy()[owner]
        done = 0
        if len(rows):  # a broker makes the file before it looks whether there is a key
            self._open_index(int(batch["storeTimestamp"].to_numpy()[rows[0]]))
        while done < len(hashes):
            file = self._open_index(int(times[done]))
            done += file.insert(hashes[done:], offsets[done:], times[done:])

    def _open_index(self, now: int) -> IndexFile:
        assert self._index_shape is not None
        after: IndexHeader | None = None
        if self._index is not None:
            if not self._index.is_full:
                return self._index
            after = self._index.header
            self._index_flushed = after.end_timestamp
            self._write_index(self._index)
        while (name := _index_name(now)) in self._index_names:
            now += 1
        self._index_names.add(name)
        self._index_name = name
        made = IndexFile.create(*self._index_shape, after=after)
        made.header = replace(made.header, index_count=0)  # written with the first key
        self._index = made
        return made

    def _write_index(self, file: IndexFile) -> None:
        """Write in place, the header last: those who read meanwhile find no header too many."""
        data = file.encode()
        path = self.path / "index" / self._index_name
        _write_over(path, data[HEADER_SIZE:], HEADER_SIZE)
        _write_over(path, data[:HEADER_SIZE], 0)

    def _write_checkpoint(self) -> None:
        last = self.last_timestamp
        checkpoint = Checkpoint(last, last, self._index_flushed)
        _write_over(self.path / "checkpoint", checkpoint.encode(), 0)

    def _write_topics(self) -> None:
        queues: dict[str, int] = {}
        for topic, queue_id in self._numbers:
            queues[topic] = max(queues.get(topic, 0), queue_id + 1)
        table = {
            topic: {
                "order": False,
                "perm": 6,
                "readQueueNums": count,
                "topicFilterType": "SINGLE_TAG",
                "topicName": topic,
                "topicSysFlag": 0,
                "writeQueueNums": count,
            }
            for topic, count in queues.items()
        }
        version = {"counter": len(table), "timestamp": self.last_timestamp}
        text = json.dumps({"dataVersion": version, "topicConfigTable": table}, indent="\t")
        written = self.path / "config" / "topics.json.tmp"
        written.write_text(text, encoding="utf-8")
        written.replace(self.path / "config" / "topics.json")


def _write_over(path: Path, data: bytes, at: int) -> None:
    """Write into a file that others may be reading: it is never cut."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.pwrite(descriptor, data, at)
    finally:
        os.close(descriptor)


def _record_sizes(columns: Mapping[str, pa.Array]) -> Rows:
    """Bytes of each record."""
    sizes = np.full(len(columns["topic"]), 91, np.int64)
    for name in ("body", "topic", "properties"):
        sizes += pc.binary_length(columns[name].cast(pa.binary())).to_numpy()
    for name in ("bornHost", "storeHost"):
        sizes += 12 * pc.starts_with(columns[name], "[").to_numpy(zero_copy_only=False)
    return sizes


def _index_name(millis: int) -> str:
    moment = datetime.fromtimestamp(millis // 1000, timezone.utc)
    return f"{moment:%Y%m%d%H%M%S}{millis % 1000:03}"


def _write_segments(folder: Path, size: int, at: int, data: npt.NDArray[np.uint8]) -> None:
    """Write bytes at an offset of a log whose files have `size` bytes, and are sparse."""
    folder.mkdir(parents=True, exist_ok=True)
    while len(data):
        start = at // size * size
        part = data[: start + size - at]
        descriptor = os.open(folder / f"{start:020}", os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            if os.fstat(descriptor).st_size < size:
                os.ftruncate(descriptor, size)
            written = os.pwrite(descriptor, part.data, at - start)
        finally:
            os.close(descriptor)
        at += written
        data = data[written:]


def build_store(
    path: str | os.PathLike[str],
    *traffic: Traffic,
    segment_size: int = 1 << 30,
    queue_entries: int = 300_000,
    index: tuple[int, int] | None = None,
) -> Path:
    """Make a store of some traffic, one after the other, cleanly closed.

    Args:
        path, segment_size, queue_entries, index: see `StoreBuilder`.

    Returns:
        The store.
    """
    with StoreBuilder(
        path, segment_size=segment_size, queue_entries=queue_entries, index=index
    ) as builder:
        for part in traffic:
            for batch in part.batches():
                builder.append(batch)
    return builder.path
