"""Turns the records that a broker sent for a range of a queue into rows.

A broker sends the bytes of its log, without the queue's entries. So there is nothing to compare a
record with but what was asked for: its queue, its place in the range, and its own checksums.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
import pyarrow as pa

from rmqstore_spark.errors import BlockError, CorruptRecordError, DataLossError, ServiceError
from rmqstore_spark.layout.record.block import read_block
from rmqstore_spark.layout.record.columns import Identity
from rmqstore_spark.layout.record.format import Records, decode_records
from rmqstore_spark.layout.spans import I4, I8, U1, text_pool
from rmqstore_spark.reader.options import ReadOptions
from rmqstore_spark.reader.rows.decoder import Decoder
from rmqstore_spark.reader.rows.selection import say_lost

_log = logging.getLogger(__name__)


class PulledRecords(Protocol):
    """The answer to one pull: what a broker has of the offsets `start` to `end - 1`."""

    @property
    def start(self) -> int:
        """The offset that was asked for."""

    @property
    def end(self) -> int:
        """One past the last offset that the answer is about."""

    @property
    def data(self) -> bytes:
        """The records, one after the other."""

    @property
    def why_gone(self) -> str:
        """Why there are no messages; "" unless they are lost."""

    @property
    def void(self) -> int:
        """How many of the offsets have void entries, if that is known."""


class PulledRows:
    """Decodes the records of a range of one queue.

    Args:
        broker_name: the value of the column of that name.
        source: who sends the records, for errors.
        topic, queue_id: the queue.
        options: the options of the read.
        is_filtered: whether the broker left out messages with other tags.
    """

    def __init__(
        self,
        broker_name: str,
        source: str,
        topic: str,
        queue_id: int,
        options: ReadOptions,
        *,
        is_filtered: bool,
    ) -> None:
        self._source = source
        self._name = (topic, queue_id)
        self._queue = f"{topic}/{queue_id}"
        self._topics = text_pool([topic])
        self._queue_ids = np.array([queue_id], np.int32)
        self._options = options
        self._is_filtered = is_filtered
        self._decoder = Decoder(broker_name, options, lambda at: (f"the log of {source}", at))

    def decode(self, pieces: Sequence[PulledRecords]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some answers, in their order.

        Raises:
            DataLossError: messages are gone, and `fail_on_data_loss` is set.
            CorruptRecordError: a record is damaged, and the mode is FAILFAST.
            ServiceError: the broker sent messages that nobody asked for.
        """
        for piece in pieces:
            if piece.why_gone:
                self._lose(piece.end - piece.start, piece.why_gone)
            if self._options.void is not None:
                self._options.void.note_count(*self._name, piece.start, piece.void)
        full = [piece for piece in pieces if piece.data]
        if not full:
            return
        buffer = np.frombuffer(b"".join([piece.data for piece in full]), np.uint8)
        behind = np.cumsum([len(piece.data) for piece in full])
        starts, sizes, is_torn = self._tiles(buffer, behind)
        records = decode_records(buffer, starts, sizes)
        owner = np.searchsorted(behind, starts, side="right")
        kept = self._kept(records, full, owner, is_torn=is_torn)
        if kept is not None:
            records = records.take(kept)
        identity = Identity(
            self._topics,
            self._queue_ids,
            np.zeros(len(records), np.int32),
            records.queue_offset,
        )
        if len(records):
            yield from self._decoder.decode(
                records,
                expected_offset=records.physical_offset,
                expected_size=records.store_size,
                identity=identity,
            )

    def _kept(
        self, records: Records, full: Sequence[PulledRecords], owner: I8, *, is_torn: bool
    ) -> I8 | None:
        """Check where the records stand in the range; return those to keep, or None for all."""
        first = np.array([piece.start for piece in full], np.int64)
        last = np.array([piece.end for piece in full], np.int64)
        sound = np.flatnonzero(records.status == 0)
        offsets, owner = records.queue_offset[sound], owner[sound]
        inside = offsets < last[owner]
        is_wrong = (offsets < first[owner]).any() or (np.diff(offsets[inside]) <= 0).any()
        # A broker passes over what has expired, and then gives as many from the end on.
        missing = int((last - first).sum()) - (len(records) - int((~inside).sum()))
        missing -= sum(piece.void for piece in full)
        is_near = (offsets < last[owner] + missing).all()
        if is_wrong or not (self._is_filtered or is_near):
            raise ServiceError(
                f"{self._source} sent messages of {self._queue} that are not those that were asked "
                f"for: offsets {int(offsets.min())} to {int(offsets.max())} for "
                f"{int(first[0])} to {int(last[-1]) - 1}."
            )
        if missing > 0 and not self._is_filtered and not is_torn:
            self._lose(missing, f"{missing} messages from offset {int(first[0])} on have expired")
        if inside.all():
            return None
        kept = np.ones(len(records), np.bool_)
        kept[sound[~inside]] = False
        return np.flatnonzero(kept)

    def _tiles(self, buffer: U1, behind: I8) -> tuple[I8, I4, bool]:
        """Find the records; return also whether some could not be told from each other.

        Args:
            buffer: uint8, the answers.
            behind: the end of each answer in it.
        """
        try:
            block = read_block(buffer)
        except BlockError:
            pass
        else:
            return block.starts, block.sizes, False
        starts, sizes, begin = [], [], 0
        for end in behind.tolist():
            part = buffer[begin:end]
            try:
                block = read_block(part)
            except BlockError as error:
                self._tear(error)
                block = read_block(part[: error.at])
            starts.append(block.starts + begin)
            sizes.append(block.sizes)
            begin = end
        return np.concatenate(starts), np.concatenate(sizes), True

    def _tear(self, error: BlockError) -> None:
        if self._options.mode == "FAILFAST":
            raise CorruptRecordError(
                f"a record of {self._queue} is damaged: {error.cause}",
                file=f"what {self._source} sent",
            )
        _log.warning(
            "DROPMALFORMED: left out the messages of %s behind a record that is damaged: %s",
            self._queue, error.cause,
        )  # fmt: skip

    def _lose(self, count: int, why: str) -> None:
        if self._options.fail_on_data_loss:
            raise DataLossError(
                f"Messages of {self._queue} are missing in {self._source}: {why}. Set "
                "failOnDataLoss=false to continue with the messages that are left."
            )
        say_lost(count, self._queue)


def record_of(data: bytes, topic: str, queue_id: int) -> Records | None:
    """Return the record of one message that a broker sent; None if it is not of that queue."""
    buffer = np.frombuffer(data, np.uint8)
    found = decode_records(buffer, np.zeros(1, np.int64), np.array([len(buffer)], np.int32))
    if not len(buffer) or found.status[0] or int(found.store_size[0]) != len(buffer):
        return None
    is_it = int(found.queue_id[0]) == queue_id
    return found if is_it and bool(found.topic.equal(text_pool([topic])).all()) else None
