"""Finds the transactions that wait for their end: half messages that nothing has ended.

A broker keeps its progress as that of the consumer group CID_RMQ_SYS_TRANS: half messages before
its offset in RMQ_SYS_TRANS_HALF_TOPIC are done, and op messages before its offset in
RMQ_SYS_TRANS_OP_HALF_TOPIC end none of the others. The messages from these offsets on tell the
rest. See docs/format.md, "Transactions" (upstream: TransactionalMessageServiceImpl.check).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from rmqstore_spark.errors import OptionError
from rmqstore_spark.layout.constants import (
    PROPERTY_CHECK_IMMUNITY_TIME,
    PROPERTY_CHECK_TIMES,
    PROPERTY_PGROUP,
    PROPERTY_REAL_QID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_UNIQ_KEY,
    TRANS_GROUP,
    TRANS_HALF_TOPIC,
    TRANS_OP_HALF_TOPIC,
)
from rmqstore_spark.layout.fields import MAX_RECORD_SIZE, MIN_RECORD_SIZE
from rmqstore_spark.layout.record.columns import COLUMNS
from rmqstore_spark.layout.record.format import Records, check_crcs, decode_records
from rmqstore_spark.layout.record.properties import find_properties
from rmqstore_spark.layout.spans import I4, I8, string_array
from rmqstore_spark.reader.groups import group_offset
from rmqstore_spark.reader.options import ReadOptions
from rmqstore_spark.reader.rows.decoder import Decoder

if TYPE_CHECKING:
    from rmqstore_spark.reader.store import Store

CHECKS_FILE: Final = "transactionChecks"
"""File in `config/` with what a store process knows of its checks. (A broker has none.)"""

_AS_ASKED: Final = ReadOptions(mode="DROPMALFORMED")
_AT_ONCE: Final = 1 << 13
_MOST_DIGITS: Final = 18
_IDENTITY: Final = (PROPERTY_PGROUP, PROPERTY_REAL_TOPIC, PROPERTY_UNIQ_KEY)
_NAMES: Final = (
    PROPERTY_PGROUP,
    PROPERTY_UNIQ_KEY,
    PROPERTY_REAL_TOPIC,
    PROPERTY_REAL_QID,
    PROPERTY_CHECK_IMMUNITY_TIME,
    PROPERTY_CHECK_TIMES,
)


Identity: TypeAlias = tuple[str, str, str]
"""Producer group, topic and UNIQ_KEY: what the half messages of a transaction have in common.

The topic belongs to it: a message that is forwarded to several keeps its UNIQ_KEY."""


class HalfPlace(NamedTuple):
    """Where a half message is.

    Attributes:
        queue_offset: its offset in RMQ_SYS_TRANS_HALF_TOPIC.
        physical_offset: where its record starts in the log.
        size: bytes of its record.
    """

    queue_offset: int
    physical_offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Transaction:
    """A transaction that waits for its end.

    Attributes:
        place: its half message; the newest one if there are several.
        born, stored: bornTimestamp and storeTimestamp of that, milliseconds.
        group: the producer group.
        key: the UNIQ_KEY of the message; empty if it has none.
        topic, queue_id: where the message goes when the transaction is committed, as the half
            message has it.
        immunity: CHECK_IMMUNITY_TIME_IN_SECONDS in milliseconds; -1 if the message has none.
        checks: how often its producer group was asked for its outcome.
        earlier: other half messages of the transaction: a broker stores one for each check, and a
            producer one for each time that it sends the message.
    """

    place: HalfPlace
    born: int
    stored: int
    group: str
    key: str
    topic: str
    queue_id: str
    immunity: int
    checks: int
    earlier: tuple[HalfPlace, ...] = ()

    @property
    def identity(self) -> Identity | None:
        """What all half messages of the transaction have in common; None without a UNIQ_KEY."""
        return (self.group, self.topic, self.key) if self.key else None

    @property
    def places(self) -> tuple[HalfPlace, ...]:
        """All its half messages, ascending."""
        return (*self.earlier, self.place)

    def joined(self, newer: Transaction) -> Transaction:
        """Return this transaction with another half message of it."""
        checks = max(self.checks, newer.checks)
        return replace(newer, earlier=(*self.earlier, self.place), checks=checks)


@dataclass(frozen=True)
class Found:
    """What waits in a store.

    Attributes:
        waiting: the transactions, by the offset of their newest half message.
        half_end: one past the last half message.
        op_offsets: n, offsets of the op messages that were read.
        op_halves: n, the half message that each of them ends, or the last one of several; -1 if
            it ends none.
        log_offset: before this physical offset, no half message was committed without an op
            message; None if the store does not say so.
    """

    waiting: tuple[Transaction, ...]
    half_end: int
    op_offsets: I8
    op_halves: I8
    log_offset: int | None


def find_transactions(store: Store) -> Found:
    """Find what waits in a store.

    Raises:
        RmqStoreError: the store cannot be read.
    """
    # A live store moves its progress in both queues meanwhile. An op message that is not read
    # leaves its half message waiting, so the progress of these is looked up first.
    ops_done = group_offset(store, TRANS_GROUP, TRANS_OP_HALF_TOPIC, 0)
    half_done = group_offset(store, TRANS_GROUP, TRANS_HALF_TOPIC, 0)
    half_end, records = _records(store, TRANS_HALF_TOPIC, half_done)
    ended: dict[int, int] = {}
    places, halves_of = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for offsets, part in _records(store, TRANS_OP_HALF_TOPIC, ops_done)[1]:
        named = named_halves(part)
        for halves, end in zip(named, part.physical_offset.tolist(), strict=True):
            ended.update(dict.fromkeys(halves, end))
        places.append(offsets)
        halves_of.append(np.array([max(halves, default=-1) for halves in named], np.int64))
    table, log_offset = _own(store)
    found = (
        replace(half, checks=max(half.checks, table.get(half.place.queue_offset, 0)))
        for offsets, part in records
        for half in transactions_of(part, offsets)
    )
    return Found(
        tuple(_waiting(found, ended)),
        half_end,
        np.concatenate(places),
        np.concatenate(halves_of),
        log_offset,
    )


def transactions_of(records: Records, queue_offsets: I8) -> list[Transaction]:
    """Return n half messages as transactions.

    Args:
        records: n sound records.
        queue_offsets: n, their offsets in RMQ_SYS_TRANS_HALF_TOPIC.
    """
    found = find_properties(records.properties, _NAMES)
    texts = {name: string_array(found[name]).to_pylist() for name in _NAMES}
    places = map(
        HalfPlace,
        queue_offsets.tolist(),
        records.physical_offset.tolist(),
        records.store_size.tolist(),
    )
    return list(
        map(
            Transaction,
            places,
            records.born_timestamp.tolist(),
            records.store_timestamp.tolist(),
            (text or "" for text in texts[PROPERTY_PGROUP]),
            (text or "" for text in texts[PROPERTY_UNIQ_KEY]),
            (text or "" for text in texts[PROPERTY_REAL_TOPIC]),
            (text or "" for text in texts[PROPERTY_REAL_QID]),
            (_milliseconds(text) for text in texts[PROPERTY_CHECK_IMMUNITY_TIME]),
            (_number(text) or 0 for text in texts[PROPERTY_CHECK_TIMES]),
        )
    )


def identities_of(records: Records) -> list[Identity | None]:
    """Return the identities of n half messages: None for one without a UNIQ_KEY."""
    found = find_properties(records.properties, _IDENTITY)
    texts = [string_array(found[name]).to_pylist() for name in _IDENTITY]
    return [
        (group or "", topic or "", key) if key else None
        for group, topic, key in zip(*texts, strict=True)
    ]


def named_halves(ops: Records) -> list[list[int]]:
    """Return the offsets of the half messages that each op message ends.

    One of RocketMQ 4 ends one; one of RocketMQ 5 can end several.
    """
    return [
        [int(word) for word in (text or "").split(",") if _number(word) is not None]
        for text in string_array(ops.body).to_pylist()
    ]


def messages_of(store: Store, waiting: Iterable[Transaction], max_bytes: int) -> pa.Table:
    """Read the half messages of transactions. Damaged ones are skipped and logged.

    Args:
        store: the store that has them.
        waiting: the transactions.
        max_bytes: the most memory that decompressed messages may take. Further bodies stay
            compressed, as sysFlag says.

    Raises:
        RmqStoreError: the store cannot be read.
    """
    batches: list[pa.RecordBatch] = []
    packed = replace(_AS_ASKED, decompress=False)
    for one in waiting:
        try:
            found = _message(store, one.place, _AS_ASKED, max_bytes)
        except OptionError:
            found = _message(store, one.place, packed, None)
        else:
            max_bytes -= sum(batch.nbytes for batch in found)
        batches += found
    schema = pa.schema([(name, COLUMNS[name]) for name in _AS_ASKED.columns])
    return pa.Table.from_batches(batches, schema=schema)


def _message(
    store: Store, place: HalfPlace, options: ReadOptions, max_bytes: int | None
) -> list[pa.RecordBatch]:
    offset, size = np.array([place.physical_offset]), np.array([place.size], np.int32)
    decoder = Decoder(store.broker_name, options, store.log.place, max_bytes)
    buffer, positions = store.log.read_entries(offset, size, None)
    return list(decoder.decode(decode_records(buffer, positions, size), expected_offset=offset))


class OpenHalves:
    """The half messages that no op message ends, of a log that grows: each message is read once.

    An op message that names one which had ended before ends nothing: it is not kept in memory.

    Attributes:
        waiting: their transactions, by the offset of their newest half message.
    """

    def __init__(self) -> None:
        self.waiting: tuple[Transaction, ...] = ()
        self._half_at = self._op_at = 0

    def read_on(self, store: Store, halves: range, ops: range) -> None:
        """Read what has come since the last time.

        Args:
            store: the store.
            halves, ops: the offsets that count in both queues, up to the same place of the log.

        Raises:
            RmqStoreError: the store cannot be read.
        """
        ended: dict[int, int] = {}
        for _, part in _read(store, TRANS_OP_HALF_TOPIC, max(ops.start, self._op_at), ops.stop):
            for named, end in zip(named_halves(part), part.physical_offset.tolist(), strict=True):
                ended.update(dict.fromkeys(named, end))
        found = (
            half
            for offsets, part in _read(
                store, TRANS_HALF_TOPIC, max(halves.start, self._half_at), halves.stop
            )
            for half in transactions_of(part, offsets)
        )
        self.waiting = tuple(_waiting(chain(self.waiting, found), ended))
        self._half_at, self._op_at = halves.stop, ops.stop


def _waiting(halves: Iterable[Transaction], ended: Mapping[int, int]) -> Iterable[Transaction]:
    """Return those transactions that no op message ends; all half messages of one together.

    An op message ends the half messages of its transaction that are before it in the log. One that
    is put later, with the same UNIQ_KEY, begins another transaction.

    Args:
        halves: half messages, ascending; those of a transaction can be together if no op message
            lies between them.
        ended: the physical offsets of op messages, by the half message that each names.
    """
    groups: dict[Identity | int, Transaction] = {}
    done: dict[Identity | int, int] = {}
    for half in halves:
        identity = half.identity or half.place.queue_offset
        ends = (ended.get(place.queue_offset, -1) for place in half.places)
        end = max(done.get(identity, -1), *ends)
        older = groups.pop(identity, None)
        if half.place.physical_offset < end:
            done[identity] = end
        else:
            groups[identity] = half if older is None else older.joined(half)
    return groups.values()


def _records(
    store: Store, topic: str, done: int | None
) -> tuple[int, Iterator[tuple[I8, Records]]]:
    """Return where queue 0 of a topic ends, and its sound records from an offset on."""
    if 0 not in store.directory.topology.queues.get(topic, ()):
        return 0, iter(())
    queue = store.queue(topic, 0)
    end = queue.max_offset
    begin = min(max(queue.min_offset, done or 0), end)
    return end, _read(store, topic, begin, end)


def _read(store: Store, topic: str, begin: int, end: int) -> Iterator[tuple[I8, Records]]:
    if begin >= end:  # there may be no such queue
        return
    queue = store.queue(topic, 0)
    for first in range(begin, end, _AT_ONCE):
        entries = queue.entries(first, min(end, first + _AT_ONCE))
        offsets = entries["physicalOffset"].astype(np.int64)
        sizes = np.clip(entries["size"].astype(np.int64), 0, MAX_RECORD_SIZE).astype(np.int32)
        held = (sizes >= MIN_RECORD_SIZE) & ~queue.format.is_filler(entries)
        held &= store.log.covers(offsets, sizes)
        rows = np.flatnonzero(held)
        if len(rows):
            records = _decoded(store, offsets[rows], sizes[rows])
            sound = np.flatnonzero(
                (records.status == 0) & (records.physical_offset == offsets[rows])
            )
            yield first + rows[sound], records.take(sound)


def _decoded(store: Store, offsets: I8, sizes: I4) -> Records:
    buffer, positions = store.log.read_entries(offsets, sizes, None)
    return check_crcs(decode_records(buffer, positions, sizes), bodies=False)


def _own(store: Store) -> tuple[dict[int, int], int | None]:
    """Return the checks by half message, and the log offset, that a store process has saved."""
    value = store.directory.config(f"{CHECKS_FILE}.json") or {}
    checks = {int(offset): count for offset, count in value.get("checks", {}).items()}
    return checks, value.get("logOffset")


def _milliseconds(text: str | None) -> int:
    number = _number(text)
    return -1 if number is None else number * 1000


def _number(text: str | None) -> int | None:
    is_one = text is not None and text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS
    return int(text) if text is not None and is_one else None
