"""Looks up single messages: by key, by id, by time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmqstore_spark.errors import OptionError, SegmentExpiredError
from rmqstore_spark.layout.hosts import decode_msg_id, encode_host
from rmqstore_spark.layout.record.columns import COLUMNS, TIMESTAMP
from rmqstore_spark.layout.record.format import Records
from rmqstore_spark.layout.spans import I4, I8, string_array
from rmqstore_spark.reader.key_search import (
    MAX_TIME,
    KeySearch,
    KeyWanted,
    index_pieces,
    known_topics,
)
from rmqstore_spark.reader.log.end import record_head
from rmqstore_spark.reader.options import LogSplit, QueueRange, ReadOptions
from rmqstore_spark.reader.plan import read_split
from rmqstore_spark.reader.rows.decoder import Decoder

if TYPE_CHECKING:
    from rmqstore_spark.reader.store import Store

__all__ = [
    "query_by_key",
    "query_by_msg_id",
    "query_by_time",
    "read_by_key",
    "uniq_key_wanted",
]

T = TypeVar("T")

_MAX_MILLIS: Final = (2**63 - 1) // 1000  # the most that fit in 64 bits as microseconds


def query_by_key(
    store: Store,
    topic: str,
    key: str,
    *,
    begin_ms: int = 0,
    end_ms: int = MAX_TIME,
    max_num: int | None = None,
    max_bytes: int | None = None,
    options: ReadOptions = ReadOptions(),
    between: Callable[[], object] = lambda: None,
) -> pa.Table:
    """Find the messages of a topic that have a key, in the order of the log.

    The result holds all such messages that are still in the log, whether the index has them or not.
    Topic, queueId and queueOffset are those of the record. Messages that wait in
    SCHEDULE_TOPIC_XXXX, and the halves of transactions, are found under those topics. Rolled-back
    messages are not found, nor those with void entries in their queues.

    Args:
        store: the store to search.
        topic: the topic of the record.
        key: the UNIQ_KEY of the record, or one of its KEYS.
        begin_ms: least storeTimestamp, milliseconds since the epoch.
        end_ms: greatest storeTimestamp.
        max_num: return at most this many messages, the newest ones.
        max_bytes: maximum size of the decompressed messages in memory. The search never holds much
            more than that.
        options: columns, and so on. `tags` and `keys` restrict the result further.
        between: called between two batches of the read. An exception that it raises ends the
            search.

    Raises:
        OptionError: the messages take more than `max_bytes`.
        CorruptRecordError: the log is damaged, and the mode is FAILFAST.
    """
    if max_num is not None and max_num < 0:
        raise OptionError(f"max_num must be at least 0, not {max_num}.")
    wanted = KeyWanted(frozenset({key}), frozenset({topic}), begin_ms, end_ms)
    return _unless_expired(
        store, lambda: _collected(store, wanted, options, max_num, max_bytes, between)
    )


def uniq_key_wanted(store: Store, topics: Iterable[str] | None, uniq_key: str) -> KeyWanted:
    """Return the search for messages with a UNIQ_KEY, the id that the producer saw.

    Args:
        topics: the topics of the records. None for all that have queues or settings in the store.
            In a store without queues the topics are not known: the whole log is read.
    """
    names: frozenset[str] | None = None
    if topics is not None:
        names = frozenset(topics)
    elif store.has_queues:
        names = known_topics(store)
    return KeyWanted(frozenset({uniq_key}), names, uniq_only=True)


def read_by_key(
    store: Store, wanted: KeyWanted, options: ReadOptions, max_num: int | None = None
) -> Iterator[pa.RecordBatch]:
    """Read the messages with a key, in the order of the log, a batch at a time.

    The search finds all messages before it reads the first one, so memory holds their physical
    offsets and one batch. Messages that expire meanwhile are left out.

    Args:
        store: the store to search.
        wanted: the search.
        options: as in `query_by_key`.
        max_num: read at most this many messages, the newest ones.

    Raises:
        CorruptRecordError: the log is damaged, and the mode is FAILFAST.
    """
    decoder = Decoder(store.broker_name, options, store.log.place)
    search = KeySearch(store, wanted, options)
    offsets, sizes = _unless_expired(store, lambda: _places(store, search, decoder, max_num))
    while len(offsets):
        try:
            for records in search.read(offsets, sizes):
                yield from decoder.decode(records, expected_offset=records.physical_offset)
                offsets, sizes = offsets[len(records) :], sizes[len(records) :]
        except SegmentExpiredError:
            store.refresh(topology=False)
            expired = int(np.searchsorted(offsets, store.log.min_offset))
            if not expired:
                raise
            offsets, sizes = offsets[expired:], sizes[expired:]


def _places(
    store: Store, search: KeySearch, decoder: Decoder, max_num: int | None
) -> tuple[I8, I4]:
    """Return the physical offsets of the messages of a search, ascending, and their sizes."""
    offsets, sizes = [np.empty(0, np.int64)], [np.empty(0, np.int32)]
    count = 0
    for found in search.run(index_pieces(store, topics=search.topics)):
        records = _without_void(store, found)
        rows = decoder.wanted(records)
        chosen = records if rows is None else records.take(rows)
        offsets.append(chosen.physical_offset.copy())
        sizes.append(chosen.store_size.copy())
        count += len(chosen)
        if max_num is not None and count >= max_num:
            break
    surplus = 0 if max_num is None else max(0, count - max_num)
    return np.concatenate(offsets[::-1])[surplus:], np.concatenate(sizes[::-1])[surplus:]


def _without_void(store: Store, records: Records) -> Records:
    """Return n records without those whose entries in their own queues are void."""
    void = np.zeros(len(records), np.bool_)
    topics = string_array(records.topic).dictionary_encode()
    numbers = topics.indices.to_numpy().astype(np.int64)
    places = numbers << 32 | records.queue_id.astype(np.int64) & 0xFFFFFFFF
    known = store.directory.topology.queues
    for place in np.unique(places).tolist():
        rows = np.flatnonzero(places == place)
        topic, queue_id = topics[int(rows[0])].as_py(), int(records.queue_id[rows[0]])
        if queue_id not in known.get(topic, ()):
            continue
        queue = store.queue(topic, queue_id)
        there, entries = queue.entries_in(records.queue_offset[rows])
        rows = rows[there]
        is_its_own = entries["physicalOffset"] == records.physical_offset[rows]
        void[rows] = is_its_own & queue.format.is_void(entries)
    return records.take(np.flatnonzero(~void)) if void.any() else records


def _unless_expired(store: Store, look: Callable[[], T]) -> T:
    """Search. If files expire during the search, search again in what is left."""
    while True:
        begin = store.log.min_offset
        try:
            return look()
        except SegmentExpiredError:
            store.refresh(topology=False)
            if store.log.min_offset == begin:
                raise


def _collected(
    store: Store,
    wanted: KeyWanted,
    options: ReadOptions,
    max_num: int | None,
    max_bytes: int | None,
    between: Callable[[], object],
) -> pa.Table:
    decoder = Decoder(store.broker_name, options, store.log.place, max_bytes)
    parts: list[list[pa.RecordBatch]] = []
    missing = max_num
    search = KeySearch(store, wanted, options, between)
    for records in search.run(index_pieces(store, topics=search.topics)):
        for part in _newest_first(decoder, _without_void(store, records), missing):
            between()
            parts.append(part)
            if missing is not None:
                missing -= sum(batch.num_rows for batch in part)
        if missing == 0:
            break
    return _table([batch for part in reversed(parts) for batch in part], options)


def _newest_first(
    decoder: Decoder, records: Records, wanted: int | None
) -> Iterator[list[pa.RecordBatch]]:
    """Decode the last records of a group, and no more of them than are wanted.

    Yields:
        Batches in the order of the log. Each list lies before the previous one.
    """
    end = len(records)
    missing = end if wanted is None else wanted
    while end and missing:
        rows = np.arange(max(0, end - missing), end)
        chosen = records.take(rows)
        part = list(decoder.decode(chosen, expected_offset=chosen.physical_offset))
        yield part
        end = int(rows[0])
        missing -= sum(batch.num_rows for batch in part)


def _table(batches: list[pa.RecordBatch], options: ReadOptions) -> pa.Table:
    types = COLUMNS | ({"body": pa.string()} if options.body_as_text else {})
    schema = pa.schema([(name, types[name]) for name in options.columns])
    return pa.Table.from_batches(batches, schema=schema)


def query_by_msg_id(store: Store, msg_id: str, options: ReadOptions = ReadOptions()) -> pa.Table:
    """Find the message with an offset message id (the column msgId). No rows if it is missing.

    The id says where in the log the record is, and no queue is asked: a record whose queue entry is
    void, or that is in no queue, is found as well.

    Args:
        store: the store to search.
        msg_id: 32 or 56 hex characters. They include the broker's address: the same offset of
            another broker is another message.
        options: columns, and so on.

    Raises:
        OptionError: the text is not an offset message id.
        CorruptRecordError: the body of the message is damaged, and the mode is FAILFAST.
    """
    wanted = decode_msg_id(msg_id)
    offset = wanted.physical_offset
    batches: list[pa.RecordBatch] = []
    record = record_head(store.log, offset) if offset >= store.log.min_offset else None
    if (
        record is not None
        and _store_host(record) == encode_host(wanted.host)
        and offset < store.scan_end(string_array(record.topic).to_pylist())
    ):
        decoder = Decoder(store.broker_name, options, store.log.place)
        batches += decoder.decode(record, expected_offset=np.array([offset]))
    return _table(batches, options)


def _store_host(record: Records) -> bytes:
    at = int(record.store_host_at[0])
    size = 20 if record.store_host_v6[0] else 8
    return record.buffer[at : at + size].tobytes()


def query_by_time(
    store: Store,
    topic: str,
    queue_ids: Iterable[int] | None = None,
    *,
    begin_ms: int = 0,
    end_ms: int = MAX_TIME,
    options: ReadOptions = ReadOptions(),
) -> Iterator[pa.RecordBatch]:
    """Find the messages of a topic that were stored in a time range, in the order of the log.

    This is a binary search. If the clock of the broker went back, it can miss messages of that
    time.

    Args:
        store: the store to search.
        topic: the topic of the queues.
        queue_ids: the queues; by default all.
        begin_ms: least storeTimestamp, milliseconds since the epoch.
        end_ms: greatest storeTimestamp.
        options: columns, and so on.

    Raises:
        TopicNotFoundError: the topic or a queue does not exist.
        SegmentExpiredError, CorruptStoreError: as `Store.read`.
    """
    # For a topic that does not exist, `Store.queue` raises the error.
    known = store.directory.topology.queues.get(topic, (0,))
    numbers = known if queue_ids is None else queue_ids
    ranges = []
    for queue in store.named_queues([(topic, number) for number in numbers]):
        start = queue.offset_at(begin_ms)
        end = queue.offset_at(end_ms + 1) if end_ms < MAX_TIME else None
        if start is not None:
            last = queue.max_offset if end is None else end
            ranges.append(QueueRange(topic, queue.queue_id, start, last))
    columns = options.columns
    if "storeTimestamp" not in columns:
        options = replace(options, columns=(*columns, "storeTimestamp"))
    begin, end = (pa.scalar(min(ms, _MAX_MILLIS) * 1000, TIMESTAMP) for ms in (begin_ms, end_ms))
    for batch in read_split(store, LogSplit(0, store.log.file_end, tuple(ranges)), options):
        # If the clock went back, the offset range also holds messages of other times.
        stored = batch["storeTimestamp"]
        inside = pc.and_(pc.greater_equal(stored, begin), pc.less_equal(stored, end))
        kept = batch if pc.all(inside).as_py() else batch.filter(inside)
        yield kept.select(list(columns))
