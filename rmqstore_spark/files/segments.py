"""Read a log that is split into files of one size, each named after the offset of its first byte.

The CommitLog, a ConsumeQueue, its extension units and a DLedger log are all such logs
(`docs/format.md`, "A store directory"; RocketMQ's `MappedFileQueue`, `MultiPathMappedFileQueue`).
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

import numpy as np
import numpy.typing as npt

from rmqstore_spark.errors import CorruptStoreError, SegmentExpiredError
from rmqstore_spark.files.log_files import MAX_OFFSET, Segment, find_log_files, list_or_nothing
from rmqstore_spark.files.systems.base import (
    FileRange,
    Files,
    Int64Array,
    Listing,
    UInt8Array,
)
from rmqstore_spark.files.systems.spans import plan_runs

# RocketMQ's records are under 16 MiB; a DLedger entry has 48 bytes more.
MAX_ENTRY = (16 << 20) + 4096

# A larger `read_entries` is a mistake of the caller.
_MAX_READ = 1 << 30

_LISTED_AGAIN = 10
"""How often folders are listed again, if each listing lacks other files."""


class Segments:
    """The files of one log, read by log offset.

    It holds the listing of `load` or of the last `refresh`. Files that appear later are not seen.
    Opening a file that vanished raises `SegmentExpiredError`. Reading a file that was cut short
    raises `CorruptStoreError`; after a `refresh`, `covers` uses its new end.

    Args:
        files: the file system of the log.
        folders: the log's folders; if two hold the same name, the first one is used.
        listings: entries of each of the folders.
    """

    def __init__(self, files: Files, folders: Sequence[str], listings: Iterable[Listing]) -> None:
        self._files = files
        self.folders = tuple(folders)
        self._take(listings)

    @classmethod
    def load(cls, files: Files, folders: Sequence[str]) -> Segments:
        """List a log's folders. A folder that does not exist counts as empty."""
        return cls(files, folders, _listings(files, folders))

    def refresh(self, listing: Listing | None = None) -> bool:
        """List the folders again; return whether the segments changed.

        Args:
            listing: what the folder, of a log that has only one, holds now, if that is known.
        """
        before = self._segments
        self._take(_listings(self._files, self.folders) if listing is None else [listing])
        return before != self._segments

    def _take(self, listings: Iterable[Listing]) -> None:
        """Find the files in listings. If one is missing, list again, until two listings agree.

        A folder that changes while it is listed can show a file, but not the one before it.
        """
        self._set(listings)
        for _ in range(_LISTED_AGAIN):
            gaps = self.gaps
            if not gaps:
                return
            self._set(_listings(self._files, self.folders))
            if self.gaps == gaps:
                return

    def _set(self, listings: Iterable[Listing]) -> None:
        found = find_log_files(self.folders, listings)
        self.strays = found.strays
        self._segments = found.segments
        self._file_sizes = found.file_sizes
        self._starts = [segment.start for segment in found.segments]
        self.starts: Int64Array = np.array(self._starts, np.int64)
        self._ends: Int64Array = self.starts + np.array([s.size for s in found.segments], np.int64)

    def __len__(self) -> int:
        return len(self._segments)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._segments)

    def __getitem__(self, number: int) -> Segment:
        return self._segments[number]

    def __repr__(self) -> str:
        return f"Segments({', '.join(self.folders)}: {self.min_offset}..{self.end_offset})"

    @property
    def min_offset(self) -> int:
        """Log offset of the first available byte; 0 for a log without files."""
        return self._segments[0].start if self._segments else 0

    @property
    def end_offset(self) -> int:
        """Log offset of the byte after the last file's end; 0 for a log without files."""
        return self._segments[-1].end if self._segments else 0

    @property
    def segment_size(self) -> int:
        """Bytes of the first file; 0 for a log without files."""
        return self._file_sizes[0] if self._segments else 0

    @property
    def block(self) -> int:
        """Bytes that take hardly longer to read than one byte."""
        return self._files.block

    @property
    def stretch(self) -> int:
        """How many bytes one call should read, when all are read in order."""
        return self._files.stretch

    @property
    def odd_sizes(self) -> list[Segment]:
        """Files whose length differs from the first one's; the last file may differ."""
        return [
            segment
            for segment, size in zip(self._segments[:-1], self._file_sizes[:-1], strict=True)
            if size != self.segment_size
        ]

    @property
    def gaps(self) -> list[tuple[int, int]]:
        """Ranges (from, to) between the log's first and last byte that no file holds."""
        return [
            (before.end, after.start)
            for before, after in itertools.pairwise(self._segments)
            if before.end < after.start
        ]

    def locate(self, offset: int) -> Segment:
        """Return the segment that holds the byte at a log offset.

        Raises:
            SegmentExpiredError: the offset lies before the first file, or a file is missing.
            CorruptStoreError: the offset lies past the end, or is negative.
        """
        if 0 <= offset <= MAX_OFFSET and self._segments:
            number = bisect_right(self._starts, offset) - 1
            if number >= 0 and offset < self._segments[number].end:
                return self._segments[number]
        raise self._outside(offset)

    def read(self, offset: int, length: int) -> bytes:
        """Return bytes from a log offset on; fewer than `length` only at the end of the segment.

        Raises:
            SegmentExpiredError, CorruptStoreError: as `locate`; also if the file vanished or is
                shorter than when it was listed.
        """
        segment = self.locate(offset)
        begin, length = offset - segment.start, min(length, segment.end - offset)
        try:
            data = self._files.read(segment.path, begin, length)
        except FileNotFoundError as error:
            raise SegmentExpiredError(
                "the file is gone", file=segment.path, offset=begin
            ) from error
        if len(data) < length:
            raise self._cut_short(segment, begin + len(data))
        return data

    def read_into(self, offset: int, out: UInt8Array) -> int:
        """Fill `out` from a log offset on; return the bytes read, fewer only at the segment's end.

        Raises:
            SegmentExpiredError, CorruptStoreError: as `read`.
        """
        segment = self.locate(offset)
        begin, length = offset - segment.start, min(len(out), segment.end - offset)
        try:
            count = self._files.read_into(segment.path, begin, out[:length])
        except FileNotFoundError as error:
            raise SegmentExpiredError(
                "the file is gone", file=segment.path, offset=begin
            ) from error
        if count < length:
            raise self._cut_short(segment, begin + count)
        return count

    def read_range(self, offset: int, length: int) -> bytes:
        """Return all bytes of a range, which may cross the ends of segments.

        Raises:
            SegmentExpiredError, CorruptStoreError: as `read`, for any byte of the range.
        """
        parts = []
        while length > 0:
            part = self.read(offset, length)
            parts.append(part)
            offset += len(part)
            length -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def pieces(self, offset: int, length: int) -> list[FileRange]:
        """Return the parts of files that hold a range.

        Raises:
            SegmentExpiredError, CorruptStoreError: as `locate`.
        """
        pieces = []
        while length > 0:
            segment = self.locate(offset)
            count = min(length, segment.end - offset)
            pieces.append(FileRange(segment.path, offset - segment.start, count))
            offset, length = offset + count, length - count
        return pieces

    def used_end(self, segment: Segment) -> int:
        """Return a log offset from which on a segment holds only zeros, as far as that is known.

        Raises:
            SegmentExpiredError: the file vanished.
        """
        try:
            size = self._files.used_size(segment.path)
        except FileNotFoundError as error:
            raise SegmentExpiredError("the file is gone", file=segment.path, offset=0) from error
        return segment.end if size is None else min(segment.start + size, segment.end)

    def covers(self, offsets: npt.ArrayLike, lengths: npt.ArrayLike) -> npt.NDArray[np.bool_]:
        """Return which entries lie within one segment and have a valid length (1 to `MAX_ENTRY`).

        Args:
            offsets: i8[n], log offset of each entry.
            lengths: int[n], bytes of each.

        Returns:
            bool[n]
        """
        return self._covered(_int64(offsets), _int64(lengths))[0]

    def read_entries(
        self,
        offsets: npt.ArrayLike,
        lengths: npt.ArrayLike,
        *,
        buffer: UInt8Array | None = None,
        max_gap: int | None = None,
    ) -> tuple[UInt8Array, Int64Array]:
        """Read many entries; they may repeat and overlap. Ascending offsets are fastest.

        Neighbouring entries are read together, with the gap between them if that is cheaper. So the
        buffer can hold other bytes between the entries.

        Args:
            offsets: i8[n], log offset of each entry.
            lengths: int[n], bytes of each.
            buffer: u1[...] to read into; a larger one is allocated if it is too small.
            max_gap: widest gap to read, in bytes; the file system's own choice by default.

        Returns:
            The buffer, and i8[n]: where in it each entry begins.

        Raises:
            SegmentExpiredError, CorruptStoreError: an entry does not exist; use `covers` to filter
                such entries first. The content of the buffer is then undefined.
        """
        at, sizes = _int64(offsets), _int64(lengths)
        good, numbers = self._covered(at, sizes)
        if not good.all():
            bad = int(np.argmin(good))
            raise self._bad_entry(int(at[bad]), int(sizes[bad]))
        runs = plan_runs(
            at,
            sizes,
            numbers,
            max_gap=self._files.max_gap if max_gap is None else max_gap,
            max_waste=self._files.max_waste,
        )
        needed = int(runs.lengths.sum())
        if needed > _MAX_READ:
            raise ValueError(f"{needed} bytes are too many for one read: request fewer entries")
        if buffer is None or len(buffer) < needed:
            buffer = np.empty(needed + needed // 4, np.uint8)
        self._read_runs(runs.offsets, runs.lengths, runs.groups, buffer)
        return buffer, runs.positions

    def _read_runs(
        self, offsets: Int64Array, lengths: Int64Array, numbers: Int64Array, out: UInt8Array
    ) -> None:
        """Read ranges, ordered by segment, into `out`, one after the other."""
        bounds = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
        position = 0
        for begin, end in itertools.pairwise(bounds):
            if begin == end:
                continue
            segment = self._segments[int(numbers[begin])]
            within, sizes = offsets[begin:end] - segment.start, lengths[begin:end]
            total = int(sizes.sum())
            try:
                done = self._files.read_spans(
                    segment.path, within, sizes, out[position : position + total]
                )
            except FileNotFoundError as error:
                raise SegmentExpiredError(
                    "the file is gone", file=segment.path, offset=int(within[0])
                ) from error
            if done < end - begin:
                raise self._cut_short(segment, int(within[done]))
            position += total

    def _covered(
        self, offsets: Int64Array, lengths: Int64Array
    ) -> tuple[npt.NDArray[np.bool_], Int64Array]:
        """Return which entries exist, and the number of the segment of each existing one."""
        if not self._segments:
            return np.zeros(len(offsets), np.bool_), np.zeros(len(offsets), np.int64)
        numbers = np.searchsorted(self.starts, offsets, side="right") - 1
        good = (numbers >= 0) & (lengths > 0) & (lengths <= MAX_ENTRY)
        # Compared to the bytes that are left, because offset + length could overflow.
        good &= lengths <= self._ends[numbers] - np.maximum(offsets, 0)
        return good, numbers

    def _bad_entry(self, offset: int, length: int) -> Exception:
        if not 0 < length <= MAX_ENTRY:
            return CorruptStoreError(
                f"an entry cannot have {length} bytes", file=self._folder, offset=offset
            )
        try:
            segment = self.locate(offset)
        except (SegmentExpiredError, CorruptStoreError) as error:
            return error
        return CorruptStoreError(
            f"an entry of {length} bytes extends past the end of its file ({segment.size} bytes)",
            file=segment.path,
            offset=offset - segment.start,
        )

    def _cut_short(self, segment: Segment, offset: int) -> CorruptStoreError:
        """Return the error for a file that ended at `offset`, or later in the range read there."""
        with suppress(FileNotFoundError):
            offset = max(offset, self._files.size(segment.path))
        return CorruptStoreError(
            f"the file ends early; it had {segment.size} bytes when it was listed",
            file=segment.path,
            offset=offset,
        )

    @property
    def _folder(self) -> str:
        return ", ".join(self.folders)

    def _outside(self, offset: int) -> Exception:
        """Return the error for an offset at which there is nothing."""
        have = f"the log holds {self.min_offset} to {self.end_offset}"
        if not self._segments or 0 <= offset < self.min_offset:
            return SegmentExpiredError(
                f"log offset {offset} has expired; {have}", file=self._folder
            )
        if 0 <= offset < self.end_offset:
            return SegmentExpiredError(
                f"no file holds log offset {offset}; {have}",
                file=self._folder,
                remedy="A file is missing. If the CommitLog is spread over several folders, name "
                "them all (storePathCommitLog). Otherwise set failOnDataLoss=false to skip what is "
                "missing.",
            )
        return CorruptStoreError(f"log offset {offset} is past the end; {have}", file=self._folder)


def read_ranges(wanted: Sequence[tuple[Segments, int, int]]) -> list[bytes]:
    """Read ranges of logs on one file system in as few requests as possible.

    Args:
        wanted: n logs, the offset in each, and how many bytes, as for `Segments.read_range`.

    Raises:
        SegmentExpiredError, CorruptStoreError: as `Segments.read`, for any byte of the ranges.
    """
    pieces = [segments.pieces(offset, length) for segments, offset, length in wanted]
    flat = [piece for part in pieces for piece in part]
    if not flat:
        return [b""] * len(wanted)
    files = wanted[0][0]._files
    try:
        data = files.read_many(flat)
    except FileNotFoundError:
        data = [b""] * len(flat)
    if any(len(part) < piece.length for piece, part in zip(flat, data, strict=True)):
        # A file is gone, or was cut short: this says which, and where.
        return [segments.read_range(offset, length) for segments, offset, length in wanted]
    if len(flat) == len(pieces) and all(pieces):
        return list(data)
    parts = iter(data)
    return [b"".join(itertools.islice(parts, len(part))) for part in pieces]


def _listings(files: Files, folders: Sequence[str]) -> list[Listing]:
    return [list_or_nothing(files, folder) for folder in folders]


def _int64(values: npt.ArrayLike) -> Int64Array:
    return np.ascontiguousarray(values, np.int64)
