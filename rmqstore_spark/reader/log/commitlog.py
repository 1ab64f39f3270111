"""Reads the CommitLog as one sequence of bytes, from plain segments, DLedger segments or both.

A store that was switched to DLedger keeps its older segments in `commitlog/`. Offsets below the
begin of the DLedger log are read there (docs/format.md, "DLedger").
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from rmqstore_spark.errors import CorruptStoreError, SegmentExpiredError
from rmqstore_spark.files.log_files import Segment
from rmqstore_spark.files.segments import Segments, read_ranges
from rmqstore_spark.layout.dledger import ENTRY_HEADER_SIZE
from rmqstore_spark.layout.fields import MAX_RECORD_SIZE
from rmqstore_spark.layout.spans import I8, U1

_END_MISSING: Final = (
    "Files at the end of the log are missing, or the log was copied before the rest, or the queue "
    "is damaged. Put them back, or copy the store again with commitlog last, or set "
    "mode=DROPMALFORMED to leave out what is missing (rmqstore read: --skip-damaged). `rmqstore "
    "verify` shows it."
)

DLEDGER_LEAD: Final = ENTRY_HEADER_SIZE
"""Bytes of a DLedger entry in front of its record."""


@dataclass(frozen=True)
class LogSegment:
    """A file of the log, and the layout of its records.

    Attributes:
        segment: the file.
        end: log offset one past the last byte that counts.
        lead: bytes before each record: 0, or 48 in a DLedger log.
    """

    segment: Segment
    end: int
    lead: int

    @property
    def start(self) -> int:
        return self.segment.start


class CommitLog:
    """The bytes of a store's log, by physical offset.

    Args:
        plain: the segments in `commitlog/`, or in several folders.
        dledger: the segments of a DLedger log, if there is one.
        dledger_end: log offset one past the last committed DLedger entry.
    """

    def __init__(
        self, plain: Segments, dledger: Segments | None = None, dledger_end: int = 0
    ) -> None:
        self.plain = plain
        self.dledger = dledger if dledger is not None and len(dledger) else None
        self._dledger_end = dledger_end
        self._list()

    def _list(self) -> None:
        begin = self._dledger_begin
        self._segments = [
            LogSegment(segment, min(segment.end, begin), 0)
            for segment in self.plain
            if segment.start < begin
        ]
        self._segments += [
            LogSegment(segment, min(segment.end, self._dledger_end), DLEDGER_LEAD)
            for segment in self.dledger or ()
            if segment.start < self._dledger_end
        ]
        self._starts = [each.segment.start for each in self._segments]

    def replace(self, other: CommitLog) -> None:
        """Take over the files of a newer listing. The queues keep a reference to this object."""
        self.plain, self.dledger, self._dledger_end = (
            other.plain, other.dledger, other._dledger_end,
        )  # fmt: skip
        self._list()

    def __len__(self) -> int:
        return len(self.plain) + (len(self.dledger) if self.dledger else 0)

    @property
    def _dledger_begin(self) -> int:
        return self.dledger.min_offset if self.dledger else 1 << 63

    @property
    def min_offset(self) -> int:
        """Physical offset of the first byte; 0 for a log without files."""
        if len(self.plain) and self.plain.min_offset < self._dledger_begin:
            return self.plain.min_offset
        return self.dledger.min_offset if self.dledger else 0

    @property
    def file_end(self) -> int:
        """One past the last byte of the last file; in a DLedger log, the last committed byte."""
        return self._dledger_end if self.dledger else self.plain.end_offset

    @property
    def stretch(self) -> int:
        """How many bytes one call should read, when all are read in order."""
        return self.plain.stretch

    def segments(self) -> Sequence[LogSegment]:
        """Return the files in the order of the log. The plain log ends where DLedger's begins."""
        return self._segments

    def segment_at(self, offset: int) -> LogSegment | None:
        """Return the file that holds a physical offset; None if there is none."""
        number = bisect.bisect_right(self._starts, offset) - 1
        if number >= 0 and offset < self._segments[number].end:
            return self._segments[number]
        return None

    def unit_start(self, offset: int) -> int:
        """Return where a record's unit begins: the record, or in a DLedger log its entry."""
        return offset - DLEDGER_LEAD if offset >= self._dledger_begin else offset

    def missing(self, offsets: I8) -> npt.NDArray[np.bool_]:
        """Return which offsets lie before the log's first byte, or in a missing file."""
        ends = np.array([segment.end for segment in self._segments], np.int64)
        numbers = np.searchsorted(np.array(self._starts, np.int64), offsets, side="right") - 1
        inside = numbers >= 0
        if len(ends):
            inside &= offsets < ends[numbers]
        return ~inside & (offsets < self.file_end)

    def held_bytes(self, begin: int, end: int) -> int:
        """Return the bytes of the files in a stretch of the log."""
        return sum(last - first for first, last in self._held(begin, end))

    def cuts(self, begin: int, end: int, count: int) -> list[int]:
        """Cut a stretch of the log into pieces of equal bytes. Missing files do not count.

        Args:
            begin, end: the stretch.
            count: number of pieces, 1 or more.

        Returns:
            The edges of the pieces, from `begin` to `end`.
        """
        held = self._held(begin, end)
        total = sum(last - first for first, last in held)
        edges, passed, wanted = [begin], 0, 1
        for first, last in held:
            while wanted < count and total * wanted // count <= passed + last - first:
                edges.append(first + total * wanted // count - passed)
                wanted += 1
            passed += last - first
        return [*edges, end]

    def _held(self, begin: int, end: int) -> list[tuple[int, int]]:
        held = [(max(s.start, begin), min(s.end, end)) for s in self._segments]
        return [(first, last) for first, last in held if first < last]

    def place(self, offset: int) -> tuple[str, int]:
        """Return the file of a physical offset and the offset in that file, for error texts."""
        found = self.segment_at(offset)
        if found is None:
            return ", ".join(self.plain.folders), offset
        return found.segment.path, offset - found.start

    def read(self, offset: int, length: int) -> bytes:
        """Read bytes of the log; fewer than `length` if the segment ends.

        Raises:
            SegmentExpiredError: the file has expired.
            CorruptStoreError: the offset is past the log's end.
        """
        return self._side(offset).read(offset, length)

    def read_all(self, spans: Sequence[tuple[int, int]]) -> list[bytes]:
        """Read spans of the log in as few requests as possible.

        Args:
            spans: n, the physical offset of each, and its size in bytes.

        Raises:
            SegmentExpiredError, CorruptStoreError: as `read`.
        """
        return read_ranges([(self._side(offset), offset, size) for offset, size in spans])

    def read_into(self, offset: int, out: U1) -> int:
        """Fill `out` from the log. Return the bytes read; fewer if the segment ends."""
        return self._side(offset).read_into(offset, out)

    def _side(self, offset: int) -> Segments:
        return self.dledger if self.dledger and offset >= self._dledger_begin else self.plain

    def covers(self, offsets: I8, lengths: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
        """Return which spans lie completely in one file of the log, before the log's end."""
        if self.dledger is None:
            return self.plain.covers(offsets, lengths)
        newer = offsets >= self._dledger_begin
        inside = offsets + lengths.astype(np.int64) <= self._dledger_end
        new, old = self.dledger.covers(offsets, lengths), self.plain.covers(offsets, lengths)
        return np.where(newer, inside & new, old).astype(np.bool_)

    def read_entries(
        self, offsets: I8, lengths: npt.NDArray[np.int32], buffer: U1 | None
    ) -> tuple[U1, I8]:
        """Read spans into a buffer, which is reused and grows as needed.

        Returns:
            The buffer, and where each span begins in it.

        Raises:
            SegmentExpiredError: a file has expired.
            CorruptStoreError: a span is not in the log.
        """
        newer = offsets >= self._dledger_begin
        if self.dledger is None or not newer.any():
            return self.plain.read_entries(offsets, lengths, buffer=buffer)
        if newer.all():
            return self.dledger.read_entries(offsets, lengths, buffer=buffer)
        first, first_at = self.plain.read_entries(offsets[~newer], lengths[~newer])
        second, second_at = self.dledger.read_entries(offsets[newer], lengths[newer])
        positions = np.empty(len(offsets), np.int64)
        positions[~newer], positions[newer] = first_at, second_at + len(first)
        return np.concatenate([first, second]), positions

    def _missing_file(self, offset: int) -> SegmentExpiredError:
        for files in filter(None, (self.plain, self.dledger)):
            for short in files.odd_sizes:
                if short.start <= offset < short.start + files.segment_size:
                    return SegmentExpiredError(
                        f"the file has {short.size} bytes, and the other files of the log have "
                        f"{files.segment_size}: it was cut off",
                        file=short.path,
                        remedy="Restore it from a backup, or read a replica of the store. "
                        "failOnDataLoss=false and mode=DROPMALFORMED pass over it (rmqstore read: "
                        "--skip-damaged).",
                    )
        return SegmentExpiredError(
            f"no file of the CommitLog holds offset {offset}",
            file=", ".join(self.plain.folders),
            remedy="If the CommitLog is spread over several folders, name them all "
            "(storePathCommitLog). Otherwise set failOnDataLoss=false to skip what is missing "
            "(rmqstore read: --skip-damaged).",
        )

    def ends_before(self, known: int) -> CorruptStoreError:
        """Return the error for a log that is known to have reached past its last file."""
        file, at = self.place(self.file_end)
        return CorruptStoreError(
            f"the files of the CommitLog end at physical offset {self.file_end}, but it reached "
            f"{known}",
            file=file,
            offset=at,
            remedy=_END_MISSING,
        )

    def gone(
        self, offset: int, size: int = 0, named_by: str = "a queue entry"
    ) -> SegmentExpiredError | CorruptStoreError:
        """Return the error for a span that `covers` does not find in the log."""
        if offset < self.file_end and self.segment_at(offset) is None and offset >= self.min_offset:
            return self._missing_file(offset)
        if offset < self.min_offset:
            return SegmentExpiredError(
                f"the CommitLog begins at {self.min_offset}: the record at {offset} has expired",
                file=", ".join(self.plain.folders),
            )
        file, at = self.place(offset)
        if offset >= self.file_end:
            return CorruptStoreError(
                f"{named_by} points past the end of the CommitLog ({self.file_end})",
                file=file,
                offset=at,
                remedy=_END_MISSING,
            )
        if size > MAX_RECORD_SIZE:
            cause = f"{named_by} states {size} bytes; a record has at most {MAX_RECORD_SIZE}"
            return CorruptStoreError(cause, file=file, offset=at)
        return CorruptStoreError(
            f"{named_by} states a record of {size} bytes where no record fits",
            file=file,
            offset=at,
        )
