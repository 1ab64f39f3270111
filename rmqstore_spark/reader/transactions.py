"""Finds the transactions that wait for their end: half messages that nothing has ended.

A broker keeps its progress as that of the consumer group CID_RMQ_SYS_TRANS: half messages before
its offset in RMQ_SYS_TRANS_HALF_TOPIC are done, and op messages before its offset in
RMQ_SYS_TRANS_OP_HALF_TOPIC end none of the others. The messages from these offsets on tell the
rest. See docs/format.md, "Transactions" (upstream: TransactionalMessageServiceImpl.check).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    ops_done = group_offset(store, TRANS_GROUP, TRANS_OP_HALF_TOPIC, 0) or 0
    half_done = group_offset(store, TRANS_GROUP, TRANS_HALF_TOPIC, 0) or 0
    halves, ops = (_range(store, topic) for topic in (TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC))
    if half_done <= halves.stop and ops_done <= ops.stop:  # else it tells of other messages
        halves = range(max(halves.start, half_done), halves.stop)
        ops = range(max(ops.start, ops_done), ops.stop)
    places, halves_of = [np.empty(0, np.int64)], [np.empty(0, np.int64)]

    def noted_ops() -> Iterator[_Ops]:
        for offsets, part in _read(store, TRANS_OP_HALF_TOPIC, ops):
            named = named_halves(part)
            places.append(offsets)
            halves_of.append(np.array([max(each, default=-1) for each in named], np.int64))
            yield _Ops.of(part, named)

    table, log_offset = _own(store)
    checked = (
        [
            replace(half, checks=max(half.checks, table.get(half.place.queue_offset, 0)))
            for half in part
        ]
        for part in _halves(store, halves)
    )
    waiting = _still_waiting((), checked, noted_ops())
    return Found(
        waiting, halves.stop, np.concatenate(places), np.concatenate(halves_of), log_offset
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
        half_end, op_end: before these offsets, all messages of the two queues were read.
    """

    def __init__(self) -> None:
        self.waiting: tuple[Transaction, ...] = ()
        self.half_end = self.op_end = 0

    def read_on(self, store: Store, halves: range, ops: range) -> None:
        """Read what has come since the last time; all of it, if a queue has begun again.

        Args:
            store: the store.
            halves, ops: the offsets that count in both queues, up to the same place of the log.
                Half messages before them are forgotten.

        Raises:
            RmqStoreError: the store cannot be read.
        """
        if halves.stop < self.half_end or ops.stop < self.op_end:
            self.waiting, self.half_end, self.op_end = (), 0, 0
        new_ops = range(max(ops.start, self.op_end), ops.stop)
        parts = _read(store, TRANS_OP_HALF_TOPIC, new_ops)
        self.waiting = _still_waiting(
            [one for one in self.waiting if one.place.queue_offset >= halves.start],
            _halves(store, range(max(halves.start, self.half_end), halves.stop)),
            (_Ops.of(part, named_halves(part)) for _, part in parts),
        )
        self.half_end, self.op_end = halves.stop, ops.stop


class _Ops(NamedTuple):
    """Some op messages that follow each other.

    Attributes:
        end: physical offset of the last one.
        ended: the physical offset of the op message for each half message that one names.
    """

    end: int
    ended: Mapping[int, int]

    @classmethod
    def of(cls, records: Records, named: Iterable[Iterable[int]]) -> _Ops:
        """Return op messages, by the half messages that each names."""
        places = records.physical_offset.tolist()
        ended = {half: at for halves, at in zip(named, places, strict=True) for half in halves}
        return cls(max(places, default=-1), ended)


def _still_waiting(
    older: Iterable[Transaction], halves: Iterable[Sequence[Transaction]], ops: Iterator[_Ops]
) -> tuple[Transaction, ...]:
    """Return the transactions that wait, of some that did, and after messages of both queues.

    The queues are read side by side, as their messages are in the log: all op messages of days
    would take much memory.

    Args:
        older: what waited before these messages.
        halves: half messages, in parts, ascending.
        ops: op messages, ascending.
    """
    waiting = tuple(older)
    read_to, ended = -1, dict[int, int]()  # what is read of the op messages
    for part in halves:
        end = part[-1].place.physical_offset
        while read_to < end and (more := next(ops, None)) is not None:
            read_to = more.end
            ended.update(more.ended)
        before = {half: at for half, at in ended.items() if at < end}
        ended = {half: at for half, at in ended.items() if at >= end}
        waiting = tuple(_waiting(chain(waiting, part), before))
    for rest in chain([_Ops(-1, ended)], ops):
        waiting = tuple(_waiting(waiting, rest.ended))
    return waiting


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


def _range(store: Store, topic: str) -> range:
    """Return the offsets of the messages in queue 0 of a topic."""
    if 0 not in store.directory.topology.queues.get(topic, ()):
        return range(0)
    queue = store.queue(topic, 0)
    return range(queue.min_offset, queue.max_offset)


def _halves(store: Store, wanted: range) -> Iterator[Sequence[Transaction]]:
    for offsets, part in _read(store, TRANS_HALF_TOPIC, wanted):
        if len(offsets):
            yield transactions_of(part, offsets)


def _read(store: Store, topic: str, wanted: range) -> Iterator[tuple[I8, Records]]:
    """Return the sound records at offsets of queue 0 of a topic."""
    if not wanted:  # there may be no such queue
        return
    queue = store.queue(topic, 0)
    for first in range(wanted.start, wanted.stop, _AT_ONCE):
        entries = queue.entries(first, min(wanted.stop, first + _AT_ONCE))
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
