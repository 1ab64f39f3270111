"""Reads the queues of an open store, and the records that they name, for consumers.

It follows `DefaultMessageStore.getMessage` and `ConsumeQueue.getOffsetInQueueByTime` of RocketMQ.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from rmqstore_spark.engine.log.published_log import PublishedLog
from rmqstore_spark.engine.open_store import OpenStore
from rmqstore_spark.errors import SegmentExpiredError
from rmqstore_spark.layout.fields import MAX_RECORD_SIZE, MIN_RECORD_SIZE
from rmqstore_spark.layout.queues.format import Entries
from rmqstore_spark.layout.record.format import Records, decode_records
from rmqstore_spark.layout.spans import I4, I8

_LOOKED_AT: Final = 800
_MOST: Final = 32
_MOST_BYTES: Final = 256 << 10
_MOST_OLD: Final = 8
_MOST_OLD_BYTES: Final = 64 << 10
_HEAD: Final = 256
_MOST_TAGS: Final = 1 << 12


def _resident_bytes(percent: int) -> int:
    """Return a part of the machine's memory: what lies further back is taken to be on disk."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * percent // 100


@dataclass(frozen=True)
class Reading:
    """What was read of a queue.

    Attributes:
        status: a name of RocketMQ's GetMessageStatus.
        next: the offset to read from next.
        least, most: the queue's offsets: its first, and one past its last.
        data: the records, as they are in the log.
        count: how many.
        is_far: whether the last entry that was looked at is so far behind the log's end that its
            message is taken to be on disk.
        void: how many void entries were passed over, if there was no choice by tags; those whose
            records have expired do not count.
    """

    status: str
    next: int
    least: int
    most: int
    data: bytes = b""
    count: int = 0
    is_far: bool = False
    void: int = 0


class NoRoomForReadingError(Exception):
    """The messages that were asked for have more bytes than the caller takes now."""


class QueueReader:
    """Reads queues. Used by one thread at a time.

    Args:
        store: the open store.
    """

    def __init__(self, store: OpenStore) -> None:
        self._queues = store.queues
        self._format = store.queues.format
        self._log = PublishedLog(store.log)
        self._resident = _resident_bytes(store.config.access_message_in_memory_max_ratio)

    @property
    def begin(self) -> int:
        """The physical offset at which the log begins: nothing before it can be read again."""
        return self._log.begin

    def range(self, topic: str, queue_id: int) -> tuple[int, int]:
        """Return a queue's first offset, and one past its last; 0 and 0 if there is none."""
        queues = self._queues
        return queues.min_offset(topic, queue_id), queues.max_offset(topic, queue_id)

    def read(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        most: int,
        codes: I4 | None = None,
        *,
        may_wait: bool = True,
        most_bytes: int | None = None,
    ) -> Reading:
        """Read messages of a queue, as many as a broker gives at once.

        Args:
            topic, queue_id: the queue.
            offset: from which on.
            most: most messages; at least one is given.
            codes: hash codes of the tags that are wanted, ascending; None: all messages.
            may_wait: wait for the disk, and for other threads, if need be.
            most_bytes: most bytes that the caller takes; None: as many as a broker gives.

        Raises:
            BlockingIOError: it would have to wait, and may not.
            NoRoomForReadingError: the messages have more bytes than the caller takes.
        """
        least, end = self.range(topic, queue_id)
        if not end:
            return Reading("NO_MESSAGE_IN_QUEUE", 0, least, end)
        if offset < least:
            return Reading("OFFSET_TOO_SMALL", least, least, end)
        if offset >= end:
            status = "OFFSET_OVERFLOW_ONE" if offset == end else "OFFSET_OVERFLOW_BADLY"
            return Reading(status, end, least, end)
        most = max(1, min(most, _MOST))
        count = min(end - offset, most if codes is None else _LOOKED_AT)
        entries = self._queues.read_bytes(topic, queue_id, offset, count, may_wait=may_wait)
        if not entries:
            slots = self._format.slot(self._queues.file_size)
            return Reading("OFFSET_FOUND_NULL", (offset // slots + 1) * slots, least, end)
        log, old = self._log, self._log.end - self._resident
        places, sizes = np.empty(most, np.int64), np.empty(most, np.int32)
        taken, seen, is_wanted = self._format.pick(
            entries, codes, (log.begin, log.end, log.segment_size, old),
            (most, _MOST_BYTES, _MOST_OLD, _MOST_OLD_BYTES), places, sizes,
        )  # fmt: skip
        width = self._format.size
        last = self._format.entry(entries[(seen - 1) * width : seen * width])
        after, is_far = offset + seen, last.physical_offset < old
        void = 0 if taken == seen or codes is not None else self._void(entries[: seen * width])
        if not taken:
            status = "MESSAGE_WAS_REMOVING" if is_wanted else "NO_MATCHED_MESSAGE"
            return Reading(status, after, least, end, is_far=is_far, void=void)
        if most_bytes is not None and int(sizes[:taken].sum()) > most_bytes:
            raise NoRoomForReadingError
        try:
            data, _ = log.read_spans(places[:taken], sizes[:taken], may_wait=may_wait)
        except SegmentExpiredError:
            begins = places[:taken] // log.segment_size
            kept = int(np.count_nonzero(begins == begins[0]))
            if kept < taken:  # which of the segments is gone?
                return self.read(
                    topic, queue_id, offset, kept, codes, may_wait=may_wait, most_bytes=most_bytes
                )
            columns, _ = self._format.split(entries)
            is_behind = columns.offsets // log.segment_size > begins[0]
            passed = int(np.argmax(is_behind)) if is_behind.any() else len(is_behind)
            return Reading("MESSAGE_WAS_REMOVING", offset + passed, least, end, is_far=is_far)
        return Reading("FOUND", after, least, end, data.tobytes(), taken, is_far, void)

    def _void(self, entries: bytes) -> int:
        found = self._format.decode(entries)
        is_there = found["physicalOffset"].astype(np.int64) >= self._log.begin
        return int(np.count_nonzero(self._format.is_void(found) & is_there))

    def entries(self, topic: str, queue_id: int, offset: int, count: int) -> Entries:
        """Return the entries of a queue from an offset on, as many as there are.

        Args:
            topic, queue_id: the queue.
            offset: of the first one.
            count: most entries.
        """
        return self._queues.read(topic, queue_id, offset, count)

    def tag_codes(self, topic: str, queue_id: int, begin: int, end: int) -> I4 | None:
        """Return the hash codes of the tags of entries, each code once.

        Args:
            topic, queue_id: the queue.
            begin, end: the offsets of the entries.

        Returns:
            The codes; None if there are more than a few thousand entries, or some are not there,
            or have their codes in units.
        """
        if not 0 <= end - begin <= _MOST_TAGS:
            return None
        entries = self._queues.read(topic, queue_id, begin, end - begin)
        tags = entries["tagsCode"].astype(np.int64)
        if len(tags) < end - begin or self._format.in_units(tags).any():
            return None
        return np.unique(tags.astype(np.int32))

    def is_resident(self, topic: str, queue_id: int) -> bool:
        """Return whether the first message of a queue is near enough to the log's end.

        So near that a new group begins with it; see `ConsumerManageProcessor.queryConsumerOffset`.
        """
        least, end = self.range(topic, queue_id)
        if least == end:
            return True
        entries = self._queues.read(topic, queue_id, least, 1)
        if not len(entries):
            return True
        return self._log.end - int(entries["physicalOffset"][0]) <= self._resident

    def stored_at(self, topic: str, queue_id: int, offset: int) -> int:
        """Return the storeTimestamp of a message, milliseconds; -1 if it is not there."""
        entries = self._queues.read(topic, queue_id, offset, 1)
        places = entries["physicalOffset"].astype(np.int64)
        sizes = entries["size"].astype(np.int32)
        if not len(entries) or not self._is_there(places, sizes)[0]:
            return -1
        found = self.record(int(places[0]))
        return -1 if found is None else int(found.store_timestamp[0])

    def first_stored(self) -> int:
        """Return the storeTimestamp of the first record of the log, milliseconds; -1 if none."""
        found = self.record(self._log.begin)
        return -1 if found is None else int(found.store_timestamp[0])

    def offset_near(self, topic: str, queue_id: int, timestamp: int) -> int:
        """Return the offset of the message whose storeTimestamp is next to a time, before or after.

        A time after all messages gives the last one, and an empty queue 0.

        Args:
            topic, queue_id: the queue.
            timestamp: milliseconds.
        """
        least, end = self.range(topic, queue_id)
        low, high = least, end - 1
        before = after = -1
        before_time = after_time = 0
        while low <= high:
            middle = (low + high) // 2
            time = self.stored_at(topic, queue_id, middle)
            if time == timestamp:
                return middle
            if time < timestamp:  # one that is gone is before all others
                low = middle + 1
                if time >= 0:
                    before, before_time = middle, time
            else:
                high = middle - 1
                after, after_time = middle, time
        if before < 0:
            return max(after, 0)
        is_after = after >= 0 and timestamp - before_time > after_time - timestamp
        return after if is_after else before

    def record(self, place: int) -> Records | None:
        """Return the one record that begins at a physical offset; None if none does."""
        try:
            room = self._log.readable(place)
            head = self._log.read(place, place + min(room, _HEAD))
            size = int.from_bytes(head[:4], "big")
            if not MIN_RECORD_SIZE <= size <= min(room, MAX_RECORD_SIZE):
                return None
            data = np.frombuffer(self._log.read(place, place + size), np.uint8)
        except SegmentExpiredError:
            return None
        found = decode_records(data, np.zeros(1, np.int64), np.array([size], np.int32))
        is_whole = not found.status[0] and int(found.physical_offset[0]) == place
        return found if is_whole else None

    def close(self) -> None:
        """Close the file that was read last."""
        self._log.close()

    def _is_there(self, places: I8, sizes: I4) -> npt.NDArray[np.bool_]:
        """Return which records the log can hold."""
        log = self._log
        inside: npt.NDArray[np.bool_] = (places >= log.begin) & (places + sizes <= log.end)
        inside &= (sizes >= MIN_RECORD_SIZE) & (sizes <= MAX_RECORD_SIZE)
        inside &= places % log.segment_size + sizes <= log.segment_size
        return inside
