"""A queue of a broker: its offsets, and single messages of it."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Final

from rmqstore_spark.client.brokers.broker import BrokerClient
from rmqstore_spark.errors import CorruptRecordError, SegmentExpiredError
from rmqstore_spark.reader.before import DEAD, NOTHING, Before, body_end, fingerprint
from rmqstore_spark.reader.rows.pulled import record_of
from rmqstore_spark.remoting.codec.codes import ResponseCode

if TYPE_CHECKING:
    from rmqstore_spark.client.brokers.answers import Pulled
    from rmqstore_spark.layout.record.format import Records

_NEAR: Final = 64
_LONG_AGO: Final = -1
_NEVER: Final = 2**63
_MOST_LOOKS: Final = 64
_MOST_AT_ONCE: Final = 32  # that brokers give


class PulledQueue:
    """A queue of a broker, as of the last time that its offsets were asked for."""

    def __init__(self, client: BrokerClient, topic: str, queue_id: int) -> None:
        self._client = client
        self.topic = topic
        self.queue_id = queue_id
        self._max: int | None = None
        self._told: int | None = None
        self._min: int | None = None
        self._before: tuple[int, Pulled] | None = None

    def __repr__(self) -> str:
        return f"PulledQueue({self.topic!r}, {self.queue_id})"

    @property
    def max_offset(self) -> int:
        """One past the last message."""
        if self._max is None:
            (self._max,) = self._client.max_offsets([(self.topic, self.queue_id)])
        return self._max

    @property
    def min_offset(self) -> int:
        """The first message, or void entry, that is there; `max_offset` if there is none."""
        if self._min is None:
            if self._told is None:
                (self._told,) = self._client.min_offsets([(self.topic, self.queue_id)])
            self._min = self.first_from(self._told, self.max_offset)
        return min(self._min, self.max_offset)

    def first_from(self, offset: int, end: int) -> int:
        """Return the first message, or void entry, from an offset on that has not expired.

        A broker continues to tell the minimum of a queue of which all messages have expired, until
        the next clean-up of its queues.
        """
        for _ in range(_MOST_LOOKS):
            if offset >= end:
                break
            pulled = self._client.message((self.topic, self.queue_id), offset)
            first = self._first_in(pulled, offset)
            if first is not None:
                return min(first, end)
            if pulled.next <= offset:
                break
            offset = pulled.next
        return min(offset, end)

    def _first_in(self, pulled: Pulled, offset: int) -> int | None:
        """Return the first message that a pull from an offset on found, if it found any.

        A void entry there counts: its batch has not expired, although no message of it is shown.
        """
        if pulled.void:
            return offset
        if pulled.code != ResponseCode.SUCCESS:
            return None
        found = record_of(pulled.data, self.topic, self.queue_id)
        return offset if found is None else max(offset, int(found.queue_offset[0]))

    @property
    def first_slot(self) -> int:
        """The first offset that can be asked for."""
        return self.min_offset

    @property
    def known_end(self) -> int | None:
        """`max_offset` if the broker has been asked for it."""
        return self._max

    def set_offsets(self, least: int, end: int) -> int | None:
        """Take note of what the broker said of `min_offset` and `max_offset`.

        Returns:
            The offset at which `set_first` should look for the first message, if it is not known.
        """
        if self._min != least:  # a queue that was recreated begins again at what is told
            self._told, self._min = least, None
        self._max = end
        return least if self._min is None and least < end else None

    def set_first(self, pulled: Pulled) -> None:
        """Take note of the pull from the offset that `set_offsets` has returned."""
        if self._told is not None:
            self._min = self._first_in(pulled, self._told)

    def set_before(self, offset: int, pulled: Pulled | None) -> None:
        """Keep the message before an offset, and no other; None: none."""
        self._before = None if pulled is None else (offset - 1, pulled)

    def before(self, offset: int) -> Before:
        """Look at the record before an offset, at a kept one without a question."""
        if offset <= self.first_slot:
            return NOTHING
        try:
            record, data = self._record(offset - 1)
        except SegmentExpiredError:
            return NOTHING
        except CorruptRecordError:
            return Before(DEAD)
        end = body_end(data, len(data))
        text = "" if end is None else fingerprint(data, data[end:], len(data))
        return Before(int(record.physical_offset[0]), text)

    def offset_at(self, timestamp: int) -> int | None:
        """Find the first offset whose storeTimestamp is at or past a time; None if there is none.

        The broker gives a message that is next to the time. The first one is found from there.

        Args:
            timestamp: milliseconds since the epoch.

        Raises:
            CorruptRecordError: a message that the search reads is damaged.
        """
        first, end = self.min_offset, self.max_offset
        if first == end:
            return None
        near = self._client.search_offset((self.topic, self.queue_id), timestamp)
        near = min(max(near, first), end - 1)
        step = 1
        if self._stored_at(near) < timestamp:
            first = near + 1
            while first < end and self._stored_at(min(first + step, end) - 1) < timestamp:
                first, step = min(first + step, end), step * _NEAR
            last = min(first + step, end)
        else:
            last = near
            while last > first and self._stored_at(max(last - step, first)) >= timestamp:
                last, step = max(last - step, first), step * _NEAR
            first = max(last - step, first)
        found = bisect_left(range(last), timestamp, first, key=self._stored_at)
        return found if found < end and self._stored_at(found) < _NEVER else None

    def _stored_at(self, offset: int) -> int:
        """Return when the first message from an offset on was stored, milliseconds.

        So void entries, whose records a broker does not give, are in the order of time as well.
        """
        most = 1
        while offset < self.max_offset:
            (pulled,) = self._client.messages([((self.topic, self.queue_id), offset)], most)
            if pulled.data:
                size = int.from_bytes(pulled.data[:4], "big")
                pulled = pulled._replace(data=pulled.data[:size])
            elif pulled.void and pulled.next > offset:
                offset, most = pulled.next, _MOST_AT_ONCE
                continue
            try:
                return int(self._record_in(pulled, offset).store_timestamp[0])
            except SegmentExpiredError:
                return _LONG_AGO
        return _NEVER

    def _record(self, offset: int) -> tuple[Records, bytes]:
        """Return the record of an offset, decoded and as it is stored.

        Raises:
            SegmentExpiredError: the broker does not have it.
            CorruptRecordError: what the broker sent is not this message.
        """
        queue = self.topic, self.queue_id
        if self._before is not None and self._before[0] == offset:
            pulled = self._before[1]
        else:
            pulled = self._client.message(queue, offset)
        return self._record_in(pulled, offset), pulled.data

    def _record_in(self, pulled: Pulled, offset: int) -> Records:
        """Return the one record of a pull from an offset on: that one, or one behind void entries.

        Raises:
            SegmentExpiredError, CorruptRecordError: as `_record`.
        """
        if pulled.code != ResponseCode.SUCCESS:
            raise SegmentExpiredError(
                f"{self._client.name} does not have offset {offset} of {self.topic}/{self.queue_id}"
                f" ({pulled.status})"
            )
        found = record_of(pulled.data, self.topic, self.queue_id)
        at = -1 if found is None else int(found.queue_offset[0])
        if at > offset + pulled.void:
            raise SegmentExpiredError(  # a broker passes over what has expired
                f"{self._client.name} has expired offset {offset} of {self.topic}/{self.queue_id}"
            )
        if found is None or at < offset:
            raise CorruptRecordError(
                f"{self._client.name} sent something else for offset {offset} of {self.topic}/"
                f"{self.queue_id}"
            )
        return found
