"""Dispatches records of the log to the queues again, and writes only the entries that differ.

Unlike a client's block, the log can hold records with entries in light queues, delayed records
whose tagsCode is their delivery time, and records of topics whose names cannot be folders
(docs/format.md, "A ConsumeQueue entry", "Delayed messages", "Light queues"; upstream:
CommitLogDispatcherBuildConsumeQueue).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from rmqstore_spark.engine.dispatch.queues import ConsumeQueues
from rmqstore_spark.layout import kernel
from rmqstore_spark.layout.constants import (
    PROPERTY_DELAY,
    PROPERTY_INNER_MULTI_DISPATCH,
    SCHEDULE_TOPIC,
    is_safe_folder_name,
)
from rmqstore_spark.layout.dledger import decode_entry_headers
from rmqstore_spark.layout.fields import MIN_RECORD_SIZE
from rmqstore_spark.layout.kernel.reference.entries import VOID_CODE
from rmqstore_spark.layout.queues.format import Entries, QueueFormat
from rmqstore_spark.layout.record.block import Block, read_block
from rmqstore_spark.layout.record.dispatches import dispatches
from rmqstore_spark.layout.record.format import Records
from rmqstore_spark.layout.record.properties import find_properties
from rmqstore_spark.layout.spans import I8, U1, string_array
from rmqstore_spark.reader.log.commitlog import CommitLog
from rmqstore_spark.reader.log.walk import Flaw, Stretch, walk_log

_log = logging.getLogger(__name__)

_MANY_ROWS: Final = 1 << 20
_GATHERED: Final = 1 << 18  # entries
_MOST_LOST: Final = 1 << 20
_MOST_SLOTS: Final = 1 << 58


@dataclass(frozen=True)
class LogBlock:
    """Records of the log that follow each other.

    Attributes:
        block: the parsed records; its starts are positions in its data.
        records: the same records, field by field.
        physical_offset: n, where each record starts in the log.
        terms: n, the term of each record's entry in the log of a group; None in other logs, and if
            nobody needs them any more.
        is_void: whether the records do not count, and only keep the offsets that they were given.
    """

    block: Block
    records: Records
    physical_offset: I8
    terms: I8 | None = None
    is_void: bool = False

    @property
    def offset(self) -> int:
        """Physical offset of the first record."""
        return int(self.physical_offset[0])


def log_blocks(log: CommitLog, start: int, end: int) -> Iterator[LogBlock]:
    """Yield the records of a part of the log, in order. Damaged ones are skipped and logged.

    The CRC of bodies is not checked: a damaged message keeps its place in its queue, and reading it
    reports the damage.
    """
    for item in walk_log(log, start, end, check_crc=False):
        if isinstance(item, Flaw):
            if not item.empty:
                _log.warning("Skipped a place in the log (%s): %s", item.offset, item.cause)
            continue
        block = read_block(_contiguous(item.records), max_rows=_MANY_ROWS)
        yield LogBlock(block, item.records, item.offsets, _terms(log, item))


def _terms(log: CommitLog, stretch: Stretch) -> I8 | None:
    first = int(stretch.offsets[0])
    lead = first - log.unit_start(first)
    if not lead:
        return None
    records = stretch.records
    headers, _ = decode_entry_headers(records.buffer, records.positions - lead)
    return headers["term"].astype(np.int64)


def _contiguous(records: Records) -> U1:
    """Return the bytes of records, without the headers of DLedger entries between them."""
    positions, sizes = records.positions, records.store_size
    first = int(positions[0])
    last = int(positions[-1]) + int(sizes[-1])  # a blank may follow
    total = int(sizes.sum(dtype=np.int64))
    if total == last - first:
        return records.buffer[first:last]
    data = np.empty(total, np.uint8)
    offsets = np.empty(len(sizes) + 1, np.int32)
    kernel.active.gather(records.buffer, positions, sizes.astype(np.int32), offsets, data)
    return data


class Run(NamedTuple):
    """Entries of consecutive offsets of a queue.

    Attributes:
        topic, queue_id: the queue.
        entries: k, in the dtype of the queues' format.
        first: queue offset of the first.
    """

    topic: str
    queue_id: int
    entries: Entries
    first: int


class _Gathered:
    """Entries of log blocks, by queue. Those of a queue are in the order of the log."""

    def __init__(self, queue_format: QueueFormat) -> None:
        self._format = queue_format
        self._numbers: dict[tuple[str, int], int] = {}
        self._parts: list[tuple[I8, Entries, I8]] = []
        self.count = 0

    def add(
        self, routes: Sequence[tuple[str, int]], counts: I8, entries: Entries, slots: I8
    ) -> None:
        """Add entries, of several queues one after the other.

        Args:
            routes, counts: the queues, and how many entries each has.
            entries, slots: the entries, and the offset of each in its queue.
        """
        known = self._numbers
        numbers = [known.setdefault(route, len(known)) for route in routes]
        of_entry = np.repeat(np.array(numbers, np.int64), counts)
        self._parts.append((of_entry, entries, slots))
        self.count += len(entries)

    def by_queue(self) -> Iterator[tuple[str, int, Entries, I8]]:
        """Yield each queue with its entries and their offsets in it."""
        if not self.count:
            return
        of_entry = np.concatenate([part[0] for part in self._parts])
        entries = np.concatenate([part[1] for part in self._parts], dtype=self._format.dtype)
        slots = np.concatenate([part[2] for part in self._parts])
        order = np.argsort(of_entry, kind="stable")
        entries, slots = entries[order], slots[order]
        ends = np.cumsum(np.bincount(of_entry, minlength=len(self._numbers))).tolist()
        begin = 0
        for (topic, queue_id), end in zip(self._numbers, ends, strict=True):
            yield topic, queue_id, entries[begin:end], slots[begin:end]
            begin = end


@dataclass
class QueueFeed:
    """Writes the entries of log blocks into queues, unless they are there already.

    Entries of several blocks are gathered, so that each queue is read once for all of them:
    `settle` compares and writes them.

    Attributes:
        queues: the queues.
        delays: milliseconds of each delay level.
        wanted: returns whether to create a missing queue for a record; called with topic, queueId
            and the offset of the record in it.
        written: number of entries that were not there already.
        made: queues that were missing.
        unsafe: topics whose records have no queue, because no folder can have their name.
        gap: called when a queue lacks entries before a record; returns once they are there.
        log_begin: physical offset of the log's first byte.
        from_begin: whether the blocks start with the log's first, so that queues can hold all their
            records.
        deleted: returns the physical offset up to which a topic's records are deleted.
        is_group: whether the log is that of a group, whose members must have the same queues. A
            record whose offset another one in its queue has been given before then has no entry
            anywhere (ConsumeQueue.putMessagePositionInfo): RocketMQ's leaders can give one twice.
    """

    queues: ConsumeQueues
    delays: tuple[int, ...]
    wanted: Callable[[str, int, int], bool]
    gap: Callable[[], object] = lambda: None
    log_begin: int = 0
    from_begin: bool = False
    deleted: Callable[[str], int] = lambda _: 0
    is_group: bool = False
    written: int = 0
    made: set[tuple[str, int]] = field(default_factory=set)
    unsafe: set[str] = field(default_factory=set)
    _ends: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    _known: dict[tuple[str, int], bool] = field(default_factory=dict)
    _gathered: _Gathered | None = None

    def feed(self, part: LogBlock) -> None:
        """Take the entries of a block's records, to be written into their queues."""
        if self._gathered is None:
            self._gathered = _Gathered(self.queues.format)
        self._gather(part, self._gathered)
        if self._gathered.count >= _GATHERED:
            self.settle()

    def settle(self) -> None:
        """Write the entries of all blocks so far into their queues."""
        gathered, self._gathered = self._gathered, None
        if gathered is not None:
            for run in self._runs(gathered):
                self.written += self.queues.reconcile(*run)

    def runs(self, part: LogBlock) -> Iterator[Run]:
        """Yield the entries of a block's records, with their places. Nothing is written.

        They are taken as written: a later record gets its place behind them.
        """
        gathered = _Gathered(self.queues.format)
        self._gather(part, gathered)
        yield from self._runs(gathered)

    def _runs(self, gathered: _Gathered) -> Iterator[Run]:
        for found in gathered.by_queue():
            yield from self._put(*found)

    def _gather(self, part: LogBlock, gathered: _Gathered) -> None:
        block = part.block
        self._due(part)
        if part.is_void:
            block.tags_code[:] = VOID_CODE
        entries, bounds = self.queues.format.of_block(block, part.physical_offset)
        slots = _grouped(block, part.records.queue_offset)
        assert len(entries) == len(slots), (
            f"{len(entries)} entries of the log at {part.offset} have {len(slots)} offsets"
        )
        gathered.add(block.routes, np.diff(bounds), entries, slots)
        names = find_properties(part.records.properties, (PROPERTY_INNER_MULTI_DISPATCH,))
        if names[PROPERTY_INNER_MULTI_DISPATCH].lengths.max(initial=-1) >= 0:
            self._gather_light(part, gathered)

    def restore(self) -> None:
        """Set the queues' ends to those of this feed, after another feed has walked the log."""
        for (topic, queue_id), (end, _) in self._ends.items():
            self.queues.rewind(topic, queue_id, end)

    def _put(self, topic: str, queue_id: int, entries: Entries, slots: I8) -> Iterator[Run]:
        if deleted := self.deleted(topic):
            kept = entries["physicalOffset"] >= deleted
            entries, slots = entries[kept], slots[kept]
        if not len(entries) or not self._is_wanted(topic, queue_id, int(slots[0])):
            return
        if self.is_group:
            entries, slots = self._first_given(topic, queue_id, entries, slots)
        is_run = len(slots) <= 1 or bool((slots[1:] - slots[:-1] == 1).all())
        breaks = () if is_run else (np.flatnonzero(np.diff(slots) != 1) + 1).tolist()
        edges = [0, *breaks, len(slots)]
        for begin, end in pairwise(edges if len(slots) else ()):
            run = entries[begin:end]
            first = self._place(topic, queue_id, run, int(slots[begin]))
            last = int(run["physicalOffset"][-1])
            self._ends[topic, queue_id] = first + len(run), last
            yield Run(topic, queue_id, run, first)

    def _first_given(
        self, topic: str, queue_id: int, entries: Entries, slots: I8
    ) -> tuple[Entries, I8]:
        """Return the entries, with their offsets, that no entry before them has been given."""
        expected, before = self._end(topic, queue_id, int(slots[0]))
        if slots[0] == expected and bool((np.diff(slots) == 1).all()):
            return entries, slots
        kept = np.ones(len(slots), np.bool_)
        places = entries["physicalOffset"].tolist()
        for row, (slot, physical) in enumerate(zip(slots.tolist(), places, strict=True)):
            kept[row] = slot >= expected or slot == 0  # a topic that was created again
            if kept[row]:
                is_odd = slot > expected and not _are_lost(slot - expected, physical - before)
                expected, before = (expected if is_odd else slot) + 1, physical
        if not kept.all():
            given = slots[~kept]
            _log.warning(
                "%d message(s) of %s/%d get no place in the queue, at any member: their leader "
                "gave them offsets from %d to %d, which others had, the first of them to the one "
                "at physical offset %d. They stay in the log. Start brokers of RocketMQ that are "
                "members with brokerRole=SLAVE, and they do not.",
                len(given), topic, queue_id, given.min(), given.max(),
                int(entries["physicalOffset"][~kept][0]),
            )  # fmt: skip
        return entries[kept], slots[kept]

    def _end(self, topic: str, queue_id: int, slot: int) -> tuple[int, int]:
        """Return the offset of a queue's next entry, and where the last one's record is at least.

        The offset is `slot` if any will do.
        """
        route = topic, queue_id
        if route in self._ends:
            return self._ends[route]
        if self.from_begin or not self.queues.begins(topic, queue_id):
            return slot, self.log_begin
        return self.queues.max_offset(topic, queue_id), self.log_begin

    def _place(self, topic: str, queue_id: int, run: Entries, slot: int) -> int:
        """Return the offset at which to write the entries of consecutive records.

        Nothing protects the queueOffset of a record. A single one that is out of order is taken for
        damaged, and its entry goes where the order of the log puts it.
        """
        route = topic, queue_id
        if route in self._ends:
            expected, before = self._ends[route]
        else:
            if slot > self.queues.max_offset(topic, queue_id):
                self.gap()
            if not self.queues.begins(topic, queue_id):
                return min(max(slot, 0), _MOST_SLOTS)
            expected, before = self.queues.max_offset(topic, queue_id), self.log_begin
            if 0 <= slot < expected and self.from_begin:
                return slot
        if slot == expected or slot == 0:  # a topic that was created again begins at 0
            return slot
        if slot < expected:
            return slot if len(run) > 1 and slot >= 0 else expected
        room = int(run["physicalOffset"][0]) - before
        return slot if _are_lost(slot - expected, room) else expected

    def _is_wanted(self, topic: str, queue_id: int, slot: int) -> bool:
        wanted = self._known.get((topic, queue_id))
        if wanted is None:
            wanted = True
            if queue_id < 0 or not is_safe_folder_name(topic) or not topic.isprintable():
                self.unsafe.add(topic)
                wanted = False
            elif (topic, queue_id) not in self.queues:
                wanted = self.wanted(topic, queue_id, slot)
                if wanted:
                    self.made.add((topic, queue_id))
            self._known[topic, queue_id] = wanted
        return wanted

    def _due(self, part: LogBlock) -> None:
        """Set the tagsCode of delayed records to their delivery time."""
        block = part.block
        numbers = [n for n, route in enumerate(block.routes) if route.topic == SCHEDULE_TOPIC]
        if not numbers:
            return
        rows = np.flatnonzero(np.isin(block.route_of, numbers))
        records = part.records.take(rows)
        texts = string_array(find_properties(records.properties, (PROPERTY_DELAY,))[PROPERTY_DELAY])
        for row, text, time in zip(
            rows.tolist(), texts.to_pylist(), records.store_timestamp.tolist(), strict=True
        ):
            if text is not None and text.lstrip("+-").isdecimal() and text.isascii():
                level = min(int(text), len(self.delays))
                if level > 0:
                    block.tags_code[row] = time + self.delays[level - 1]

    def _gather_light(self, part: LogBlock, gathered: _Gathered) -> None:
        """Take the entries of the light queues that records name."""
        rows = np.flatnonzero(part.block.queued)
        owner, names, queue_ids, slots = dispatches(part.records.take(rows))
        of = rows[owner]
        entries = self.queues.format.encode(
            part.physical_offset[of], part.block.sizes[of], part.block.tags_code[of]
        )
        routes = list(zip(names.to_pylist(), queue_ids.tolist(), strict=True))
        gathered.add(routes, np.ones(len(routes), np.int64), entries, slots)


def _are_lost(count: int, room: int) -> bool:
    """Return whether so many records of a queue can have been in some bytes of the log."""
    return count * MIN_RECORD_SIZE <= room and count < _MOST_LOST


def _grouped(block: Block, queue_offset: npt.NDArray[np.int64]) -> I8:
    """Return the queue offsets of queued records, in the order of `QueueFormat.of_block`."""
    rows = np.flatnonzero(block.queued)
    return queue_offset[rows[np.argsort(block.route_of[rows], kind="stable")]]
