"""Checks CommitLog records by themselves, and that the log holds all of each Spark batch.

See docs/format.md, "A CommitLog record" and "A block that is not published yet": the first record
of a batch says where the batch ends, and all of its records have one storeTimestamp.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmqstore_spark.layout.compression import NOT_COMPRESSED, compression_type
from rmqstore_spark.layout.constants import (
    COMPRESSION_ZLIB,
    PROPERTY_DELAY,
    TRANSACTION_NOT_TYPE,
    TRANSACTION_PREPARED_TYPE,
    TRANSACTION_ROLLBACK_TYPE,
    is_safe_folder_name,
    is_safe_topic_name,
)
from rmqstore_spark.layout.record.block import not_packed
from rmqstore_spark.layout.record.format import batch_ends, crc_property_mismatch
from rmqstore_spark.layout.spans import I4, I8, U1, binary_array
from rmqstore_spark.verify.findings import Findings, Place
from rmqstore_spark.verify.log_batch import LogBatch

_KNOWN_FLAGS: Final = 0x7FF
_MAX_PORT: Final = 0xFFFF
_ZEROS: Final = 8


class RecordChecker:
    """Checks the batches of a log in order.

    Args:
        findings: collects the problems.
    """

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._newest = 0
        self._known_topics = 0

    def check(self, batch: LogBatch) -> None:
        """Check records whose structure is sound."""
        records = batch.records
        crc = records.body_crc_mismatch()
        self._findings.each(
            "error", "body-crc", crc, batch.place,
            lambda row: f"the body does not match its bodyCRC {int(records.body_crc[row])}",
        )  # fmt: skip
        self._findings.each(
            "error", "record-crc", crc_property_mismatch(records), batch.place,
            "the record does not match its CRC property",
        )  # fmt: skip
        self._check_flags(batch)
        self._check_numbers(batch)
        self._check_hosts(batch)
        self._check_topics(batch)
        self._check_times(batch)
        self._check_properties(batch)

    def _check_flags(self, batch: LogBatch) -> None:
        flags = batch.records.sys_flag
        if not flags.any():
            return
        kind = compression_type(flags)
        unknown = (flags & ~_KNOWN_FLAGS) != 0
        unknown |= kind > COMPRESSION_ZLIB
        self._findings.each(
            "error", "sys-flag", unknown, batch.place,
            lambda row: f"sysFlag {int(flags[row]):#x} has bits that no broker sets",
        )  # fmt: skip
        packed = np.flatnonzero((kind != NOT_COMPRESSED) & ~unknown)
        if len(packed):
            wrong = np.zeros(len(batch), np.bool_)
            wrong[packed] = not_packed(batch.records.body.take(packed), kind[packed])
            self._findings.each(
                "error", "sys-flag", wrong, batch.place,
                lambda row: f"sysFlag {int(flags[row]):#x} says that the body is "
                "compressed, but it is not",
            )  # fmt: skip

    def _check_numbers(self, batch: LogBatch) -> None:
        """Check numbers that are never negative, and those that a pending transaction leaves 0."""
        records = batch.records
        self._never_negative(batch, "queueId", records.queue_id)
        self._never_negative(batch, "queueOffset", records.queue_offset)
        self._never_negative(batch, "reconsumeTimes", records.reconsume_times)
        self._never_negative(batch, "storeTimestamp", records.store_timestamp)
        pending = batch.transaction == TRANSACTION_PREPARED_TYPE
        pending |= batch.transaction == TRANSACTION_ROLLBACK_TYPE
        if pending.any():
            self._findings.each(
                "error", "field", pending & (records.queue_offset != 0), batch.place,
                lambda row: "a prepared or rolled-back record has the queueOffset "
                f"{int(records.queue_offset[row])}",
            )  # fmt: skip
        self._check_prepared_offset(batch)

    def _check_prepared_offset(self, batch: LogBatch) -> None:
        """Check preparedTransactionOffset: an offset before the record, or where a batch ends."""
        prepared = batch.records.prepared_transaction_offset
        if not prepared.any():
            return

        def text(row: int) -> str:
            return f"preparedTransactionOffset is {int(prepared[row])}"

        wrong = (prepared < 0) | (prepared >= batch.offsets) & (prepared != 0)
        wrong &= batch_ends(batch.records, batch.offsets) == 0
        self._findings.each("error", "field", wrong, batch.place, text)
        odd = ~wrong & (prepared > 0) & (batch.transaction == TRANSACTION_NOT_TYPE)
        odd &= batch.named(PROPERTY_DELAY).lengths < 0  # a delivered message names what waited
        self._findings.each(
            "note", "field", odd, batch.place,
            lambda row: text(row) + ", but there is no transaction",
        )  # fmt: skip

    def _never_negative(self, batch: LogBatch, name: str, values: I4 | I8) -> None:
        self._findings.each(
            "error", "field", values < 0, batch.place, lambda row: f"{name} is {int(values[row])}"
        )

    def _check_hosts(self, batch: LogBatch) -> None:
        records = batch.records
        for name, at, wide in (
            ("bornHost", records.born_host_at, records.born_host_v6),
            ("storeHost", records.store_host_at, records.store_host_v6),
        ):
            ports = at + np.where(wide, 16, 4) if wide.any() else at + 4
            high = records.buffer[ports] | records.buffer[ports + 1]
            self._findings.each(
                "error", "field", high != 0, batch.place, f"the port of {name} is over {_MAX_PORT}"
            )

    def _check_topics(self, batch: LogBatch) -> None:
        codes = batch.topic_codes
        for code, name in enumerate(batch.topics[self._known_topics :], start=self._known_topics):
            place = batch.place(int(np.argmax(codes == code)))
            if not is_safe_folder_name(name):
                text = f"the topic {name!r} cannot be a folder's name"
                self._findings.error("topic-name", place, text)
            elif not is_safe_topic_name(name):
                self._findings.note(
                    "topic-name", place, f"a broker would refuse the topic {name!r}"
                )
        self._known_topics = len(batch.topics)

    def _check_times(self, batch: LogBatch) -> None:
        times = batch.records.store_timestamp
        newest = np.maximum.accumulate(np.concatenate([[self._newest], times]))
        self._findings.each(
            "note", "time-back", times < newest[:-1], batch.place,
            lambda row: f"storeTimestamp is {int(newest[row]) - int(times[row])} ms before that "
            "of an earlier record",
        )  # fmt: skip
        self._newest = int(newest[-1])
        self._findings.newest = max(self._findings.newest, self._newest)
        self._findings.oldest = min(self._findings.oldest, int(times.min()))

    def _check_properties(self, batch: LogBatch) -> None:
        spans = batch.records.properties
        joined = binary_array(spans)
        _, offsets_buffer, data_buffer = joined.buffers()
        data = np.frombuffer(data_buffer, np.uint8)
        if not len(data):
            return
        offsets = np.frombuffer(offsets_buffer, np.int32, len(joined) + 1).astype(np.int64)
        if data.max() >= 0x80:
            self._findings.each(
                "note", "properties", _not_utf8(joined, data, offsets), batch.place,
                "the properties are not UTF-8",
            )  # fmt: skip
        if not data.min():
            zeros = _runs(data == 0, _ZEROS)
            self._findings.each(
                "note", "properties", _per_row(zeros, offsets) > 0, batch.place,
                f"the properties hold {_ZEROS} zero bytes in a row, as if part of a write was "
                "lost",
            )  # fmt: skip
        filled = offsets[1:] > offsets[:-1]
        open_ended = filled & (data[np.maximum(offsets[1:] - 1, 0)] != 2)
        pairs, separators = data == 1, data == 2
        pieces = int(np.count_nonzero(separators)) + int(np.count_nonzero(open_ended))
        if pieces == int(np.count_nonzero(pairs)):
            return
        dropped = _per_row(pairs, offsets) < _per_row(separators, offsets) + open_ended
        self._findings.each(
            "note", "properties", dropped, batch.place,
            "RocketMQ drops some properties: they have no name or no value",
        )  # fmt: skip


def _runs(marks: npt.NDArray[np.bool_], length: int) -> npt.NDArray[np.bool_]:
    """Return where runs of `length` marks end."""
    running = np.concatenate([np.zeros(length, np.int64), np.cumsum(marks)])
    ends: npt.NDArray[np.bool_] = running[length:] - running[:-length] == length
    return ends


def _per_row(marks: npt.NDArray[np.bool_], offsets: I8) -> I8:
    """Count the marks between adjacent offsets."""
    running = np.concatenate([[0], np.cumsum(marks, dtype=np.int64)])
    return running[offsets[1:]] - running[offsets[:-1]]


def _not_utf8(joined: pa.Array[Any], data: U1, offsets: I8) -> npt.NDArray[np.bool_]:
    """Return which values are not UTF-8."""
    bad = np.zeros(len(joined), np.bool_)
    try:
        joined.cast(pa.string())
    except pa.ArrowInvalid:
        wide = np.flatnonzero(_per_row(data >= 0x80, offsets))
        for row in wide.tolist():
            try:
                str(joined[row].as_py(), "utf-8")
            except UnicodeDecodeError:
                bad[row] = True
    return bad


@dataclass(frozen=True)
class _Begun:
    """A batch of which more records have to follow.

    Attributes:
        place: of its first record.
        first: physical offset of that.
        time: storeTimestamp of its records, ms.
        end: physical offset at which it ends.
    """

    place: Place
    first: int
    time: int
    end: int


class BatchChecker:
    """Follows the batches of a log through its records, in order.

    Args:
        findings: collects the problems.

    Attributes:
        torn: where batches without their rest lie: physical offsets of the first record of each,
            and of what follows the last one.
    """

    def __init__(self, findings: Findings) -> None:
        self.torn: list[tuple[int, int]] = []
        self._findings = findings
        self._begun: _Begun | None = None

    @property
    def end(self) -> int:
        """Where the batch ends of which more records have to follow; 0 if there is none."""
        return 0 if self._begun is None else self._begun.end

    def check(self, batch: LogBatch) -> None:
        """Look at records that follow those before without a gap."""
        self.follow(batch)
        ends = batch_ends(batch.records, batch.offsets)
        times = batch.records.store_timestamp
        for row in np.flatnonzero(ends).tolist():
            first = int(batch.offsets[row])
            self._begun = _Begun(batch.place(row), first, int(times[row]), int(ends[row]))
            self.follow(batch, row + 1)

    def follow(self, batch: LogBatch, start: int = 0) -> None:
        """Look for the rest of the batch that has begun, and for no others.

        Args:
            batch: records that follow those before without a gap.
            start: row of the first of them that counts.
        """
        if self._begun is None:
            return
        stop = start + int(np.searchsorted(batch.offsets[start:], self._begun.end))
        others = batch.records.store_timestamp[start:stop] != self._begun.time
        others |= batch_ends(batch.records, batch.offsets)[start:stop] != 0
        if others.any():
            self._report(int(batch.offsets[start + int(np.argmax(others))]))
        elif self._begun.end <= int(batch.offsets[-1]) + int(batch.records.store_size[-1]):
            self._begun = None

    def skip(self) -> None:
        """Forget the batch that has begun: damage, which is reported, is in the way."""
        if self._begun is not None:
            self._findings.tear(self._begun.first, self._begun.end)
        self._begun = None

    def finish(self, end: int) -> None:
        """Take note that the log ends.

        Args:
            end: physical offset of the log's end.
        """
        if self._begun is not None and end < self._begun.end:
            self._report(end)

    def _report(self, offset: int) -> None:
        assert self._begun is not None  # noqa: S101 - callers have looked
        self._findings.note(
            "batch",
            self._begun.place,
            f"a Spark batch begins here and should end at {self._begun.end}, but the log holds "
            f"none of it from {offset} on",
        )
        self.torn.append((self._begun.first, offset))
        self._findings.tear(self._begun.first, offset)
        self._begun = None
