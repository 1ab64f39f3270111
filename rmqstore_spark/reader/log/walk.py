"""Walks over the CommitLog record by record, in physical order, without the queues.

At a record that is not whole, the walk yields a flaw, searches for the next whole record, and
continues there. The caller decides whether the flaw is damage or the end of the log. A block that
is not published yet ends the walk (docs/format.md, "A block that is not published yet").
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from rmqstore_spark.errors import CorruptStoreError
from rmqstore_spark.layout.buffers import values_at
from rmqstore_spark.layout.constants import BLANK_SIZE, BORNHOST_V6_FLAG
from rmqstore_spark.layout.dledger import decode_entry_headers
from rmqstore_spark.layout.fields import (
    MAGIC_AT,
    MAGIC_PLACE,
    MAX_RECORD_SIZE,
    MIN_RECORD_SIZE,
    PHYSICAL_OFFSET_AT,
    PHYSICAL_OFFSET_PLACE,
    STORE_TIMESTAMP_AT,
    SYS_FLAG_LAST,
    TOTAL_SIZE_PLACE,
    V6_EXTRA,
)
from rmqstore_spark.layout.kernel.reference.plain import STOP_BAD, STOP_BLANK, STOP_MORE
from rmqstore_spark.layout.record.format import (
    STATUS_TEXT,
    Records,
    check_crcs,
    decode_records,
    walk_records,
)
from rmqstore_spark.layout.spans import I8, U1
from rmqstore_spark.reader.log.commitlog import CommitLog, LogSegment

__all__ = ["Flaw", "Stretch", "next_record", "unpublished_time", "walk_log"]

_CHUNK: Final = 2 << 20
_FIRST_CHUNK: Final = 4 << 10
_MAGIC_HEAD: Final = b"\xda\xa3\x20"  # both magic codes begin with it


@dataclass(frozen=True)
class Stretch:
    """A run of records without a gap.

    Attributes:
        records: n sound records.
        offsets: n physical offsets (int64).
        end: physical offset one past the last.
    """

    records: Records
    offsets: I8
    end: int


@dataclass(frozen=True)
class Flaw:
    """A physical offset where no whole record begins.

    Attributes:
        offset: the physical offset.
        cause: what is wrong there.
        resumes: where the next whole record begins; None if the log ends at `offset`.
        empty: there are only zeros, as after the last record of a log.
        missing: no file holds the stretch up to `resumes`.
        unpublished: storeTimestamp of the record, if it states this offset and a size, and its
            magic code is zero: a writer has not published the block that begins with it. 0 if a
            power cut can have torn the header, so that the time is unknown. None otherwise.
    """

    offset: int
    cause: str
    resumes: int | None
    empty: bool = False
    missing: bool = False
    unpublished: int | None = None


def walk_log(
    log: CommitLog,
    start: int,
    end: int,
    *,
    check_crc: bool = True,
    is_damage: Callable[[Flaw], bool] | None = None,
    resume: bool = True,
) -> Iterator[Stretch | Flaw]:
    """Walk over the log from one physical offset to another.

    Args:
        start: where a record begins; in a DLedger log, where an entry begins.
        end: records that begin at or past this offset are left out.
        check_crc: check the CRC of each body too.
        is_damage: returns whether a flaw that looks like an unpublished block is known to have been
            published. If so, the walk continues after it. By default the walk ends there.
        resume: search for the next whole record after a flaw, and continue there. Otherwise the
            first flaw ends the walk, which saves a search through up to a gigabyte of zeros.

    Yields:
        Stretches of records, ascending, and the flaws between them. A flaw whose `resumes` is None
        is the last item. The records of a stretch are valid until the next item is requested.

    Raises:
        SegmentExpiredError: a file expired during the walk.
    """
    at = start
    whole = np.empty(_CHUNK, np.uint8)
    room = _CHUNK
    segments = log.segments()
    number = 0
    patience = Patience()
    while at < end:
        while number < len(segments) and segments[number].end <= at:
            number += 1
        if number == len(segments):
            return
        segment = segments[number]
        if at < segment.start:
            cause = f"no file holds the log up to {segment.start}"
            yield Flaw(at, cause, segment.start, missing=True)
            if not resume:
                return
            at = segment.start
        buffer, filled = _fill(log, segment, at, whole[:room])
        room = min(4 * room, _CHUNK)
        step = _Step(segment, buffer, filled, at, min(end, segment.end))
        stretch, at, flaw = step.take(check_crc)
        if flaw is not None and flaw.offset >= end:
            flaw = None  # it lies in what the caller left out
        if stretch is not None:
            yield stretch
        if flaw is not None:
            if flaw.unpublished is not None:
                if is_damage is None or not is_damage(flaw):
                    yield flaw
                    return
                flaw = replace(flaw, cause="no whole record begins here (its magic code is 0)")
            room = _FIRST_CHUNK  # the next flaw may be close
            resumes = _resumption(log, flaw, check_crc, patience) if resume else None
            yield replace(flaw, resumes=resumes)
            if resumes is None:
                return
            at = resumes


def _resumption(log: CommitLog, flaw: Flaw, check_crc: bool, patience: Patience) -> int | None:
    """Return where the unit of the next whole record after a flaw begins; None if none follows."""
    found = next_record(log, flaw.offset + 1, check_crc=check_crc, patience=patience)
    if found is None:
        return None
    return found - next((s.lead for s in log.segments() if s.start <= found < s.end), 0)


def _fill(log: CommitLog, segment: LogSegment, at: int, buffer: U1) -> tuple[U1, int]:
    """Read at least one whole unit, if the segment holds one."""
    left = segment.end - at
    filled = log.read_into(at, buffer[: min(len(buffer), left)])
    if filled >= 8 and filled < left:
        size_at = 4 if segment.lead else 0
        unit = int.from_bytes(buffer[size_at : size_at + 4].tobytes(), "big", signed=True)
        wanted = min(unit, left, MAX_RECORD_SIZE + segment.lead)
        if wanted > filled:
            buffer = np.empty(wanted, np.uint8)
            filled = log.read_into(at, buffer)
    return buffer, filled


@dataclass(frozen=True)
class _Step:
    """A buffer of bytes from a segment."""

    segment: LogSegment
    buffer: U1
    filled: int
    at: int
    end: int

    def take(self, check_crc: bool) -> tuple[Stretch | None, int, Flaw | None]:
        """Return the records in the buffer, where to continue, and the flaw that ends them."""
        lead = self.segment.lead
        walk = walk_records(self.buffer, 0, self.filled, self.at, lead, limit=1 << 15)
        positions = walk.positions[walk.positions + self.at - lead < self.end]
        rooms = np.full(len(positions), self.filled, np.int64) - positions
        records = decode_records(self.buffer, positions, rooms.astype(np.int32))
        if check_crc:
            records = check_crcs(records, bodies=True)
        bad = records.status != 0
        flaw: Flaw | None = None
        resume = self.at + walk.at
        if bad.any():
            first = int(np.argmax(bad))
            cause = STATUS_TEXT[int(records.status[first])]
            flaw = Flaw(self.at + int(positions[first]) - lead, cause, None)
            records = records.take(np.arange(first))
            resume = flaw.offset
        elif len(positions) < len(walk.positions):
            resume = self.end
        elif walk.stop == STOP_BLANK:
            flaw = self._blank(walk.at, resume)
            resume = self.segment.end
        elif walk.stop == STOP_BAD or (walk.stop == STOP_MORE and walk.at == 0):
            flaw = self._stopped(walk.at, resume)
        if not len(records):
            return None, resume, flaw
        offsets = records.positions + self.at
        return Stretch(records, offsets, resume if flaw is None else flaw.offset), resume, flaw

    def _blank(self, at: int, offset: int) -> Flaw | None:
        size_at = at + (4 if self.segment.lead else 0)
        size = int.from_bytes(self.buffer[size_at : size_at + 4].tobytes(), "big", signed=True)
        left = self.segment.segment.end - offset
        if size == left:
            return None
        return Flaw(
            offset, f"a blank record states {size} bytes up to the segment's end, not {left}", None
        )

    def _stopped(self, at: int, offset: int) -> Flaw | None:
        head = self.buffer[at : min(at + MIN_RECORD_SIZE, self.filled)]
        if self.segment.end - offset < BLANK_SIZE:
            return Flaw(offset, "a segment ends without a blank record", None)
        if not head.any():
            return Flaw(offset, "nothing is written here", None, empty=True)
        if not self.segment.lead and (time := unpublished_time(head, offset)) is not None:
            cause = "an unpublished block begins here"
            return Flaw(offset, cause, None, unpublished=time)
        return Flaw(offset, "no whole record begins here", None)


def unpublished_time(head: U1, offset: int) -> int | None:
    """Return the storeTimestamp of a record that a magic code of zero hides; None for others.

    Return 0 if nothing is written behind the time. A sector then ends within the header or before
    its next field, the next sector has not reached the disk, and bytes of the time may be there.

    Args:
        head: uint8, the first bytes of a record.
        offset: physical offset of the first one.
    """
    if len(head) < MIN_RECORD_SIZE or head[MAGIC_PLACE].any():
        return None
    size = int.from_bytes(head[TOTAL_SIZE_PLACE].tobytes(), "big", signed=True)
    own = int.from_bytes(head[PHYSICAL_OFFSET_PLACE].tobytes(), "big", signed=True)
    if not MIN_RECORD_SIZE <= size <= MAX_RECORD_SIZE or own != offset:
        return None
    more = V6_EXTRA if int(head[SYS_FLAG_LAST]) & BORNHOST_V6_FLAG else 0
    time_end = STORE_TIMESTAMP_AT + more + 8
    if not head[time_end:].any():
        return 0
    return int.from_bytes(head[time_end - 8 : time_end].tobytes(), "big", signed=True)


def next_record(
    log: CommitLog, offset: int, *, check_crc: bool = True, patience: Patience | None = None
) -> int | None:
    """Find the next whole record at or past an offset; None if there is none.

    A record is recognized by its magic code, its own physical offset, consistent lengths and the
    CRC of its body. A body that was made to look like a record at exactly this offset is taken for
    one: the format offers nothing to distinguish the two.

    Raises:
        CorruptStoreError: there are too many false record headers; the search stopped.
    """
    patience = patience or Patience()
    chunk = _FIRST_CHUNK
    for segment in log.segments():
        if segment.end <= offset:
            continue
        at = max(offset, segment.start)
        while at < segment.end:
            data = log.read(at, min(chunk, segment.end - at))
            patience.left += 4 * len(data)
            chunk = min(4 * chunk, _CHUNK)
            for begin in _candidates(np.frombuffer(data, np.uint8), at):
                size = int.from_bytes(data[begin : begin + 4], "big", signed=True)
                if not MIN_RECORD_SIZE <= size <= min(MAX_RECORD_SIZE, segment.end - at - begin):
                    continue
                if _is_whole(log, segment, at + begin, size, check_crc):
                    return at + begin
                patience.spend(size, log.place(at + begin))
            if at + len(data) >= segment.end:
                break
            at += len(data) - MIN_RECORD_SIZE
    return None


class Patience:
    """Limits how many bytes of false records a search reads, in proportion to the bytes searched.

    Without a limit, a log of overlapping record headers would be read over and over.
    """

    def __init__(self) -> None:
        self.left = 64 << 20

    def spend(self, size: int, place: tuple[str, int]) -> None:
        self.left -= max(size, 4096)
        if self.left < 0:
            file, at = place
            raise CorruptStoreError(
                "too many false record headers after a damaged record; the search stopped",
                file=file,
                offset=at,
            )


def _is_whole(log: CommitLog, segment: LogSegment, offset: int, size: int, check_crc: bool) -> bool:
    if segment.lead:
        unit = offset - segment.lead
        if unit < segment.start:
            return False
        head = np.frombuffer(log.read(unit, segment.lead), np.uint8)
        headers, valid = decode_entry_headers(head, np.zeros(1, np.int64))
        stated = headers["position"][0], headers["size"][0]
        if not valid[0] or stated != (unit, size + segment.lead):
            return False
    raw = np.frombuffer(log.read(offset, size), np.uint8)
    record = decode_records(raw, np.zeros(1, np.int64), np.array([len(raw)], np.int32))
    if check_crc:
        record = check_crcs(record, bodies=True)
    return int(record.status[0]) == 0


def _candidates(data: U1, base: int) -> list[int]:
    """Return the positions with a magic code and the right physical offset, ascending."""
    count = max(0, len(data) - PHYSICAL_OFFSET_PLACE.stop)
    begins = np.flatnonzero(data[MAGIC_AT : MAGIC_AT + count] == _MAGIC_HEAD[0])
    for k in (1, 2):
        begins = begins[data[begins + MAGIC_AT + k] == _MAGIC_HEAD[k]]
    if not len(begins):
        return []
    own = values_at(data, np.dtype(">i8"), begins + PHYSICAL_OFFSET_AT)
    return begins[own == begins + base].tolist()
