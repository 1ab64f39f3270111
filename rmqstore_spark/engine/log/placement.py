"""Finds places for records: none spans two segments, and a blank closes each full segment.

Records that form a unit, the messages of a SEND_BATCH, lie in one segment together. See
docs/format.md, "How records fill a segment" (upstream: CommitLog.DefaultAppendMessageCallback,
END_FILE_MIN_BLANK_LENGTH).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rmqstore_spark.layout.constants import BLANK_SIZE
from rmqstore_spark.layout.dledger import MOST_ENTRY_SIZE
from rmqstore_spark.layout.record.format import encode_blank
from rmqstore_spark.layout.spans import I8, U1


class TooLargeError(ValueError):
    """A record, or a unit, is larger than a segment can hold."""


class Piece(NamedTuple):
    """Contiguous records in one segment.

    Attributes:
        first, last: their rows, the last one excluded.
        begin, end: physical offsets of their first byte, and of the byte after their last.
    """

    first: int
    last: int
    begin: int
    end: int


@dataclass(slots=True)
class Placement:
    """The places of n records.

    Attributes:
        begin: where the log ended before.
        end: where it ends with them.
        physical: n physical offsets.
        pieces: the records of each segment, ascending.
        blanks: physical offsets at which a blank closes its segment, ascending.
        segments: physical offsets of the first bytes of the segments written to.
    """

    begin: int
    end: int
    physical: I8
    pieces: tuple[Piece, ...]
    blanks: tuple[int, ...]
    segments: tuple[int, ...]


def place(
    sizes: npt.NDArray[np.int32] | I8,
    begin: int,
    segment_size: int,
    unit_ends: I8 | None = None,
    starts: I8 | None = None,
    lead: int = 0,
) -> Placement:
    """Find places for records.

    Args:
        sizes: n, bytes of each record.
        begin: where the log ends.
        segment_size: bytes of a segment; each starts at a multiple of it.
        unit_ends: ascending, the row after the last one of each unit; the last of them is n. None:
            each record is a unit.
        starts: n, where each record starts behind those before it, if that is known.
        lead: bytes that each record has before it: those of a DLedger entry's header. The pieces
            have them too.

    Raises:
        TooLargeError: a unit does not fit into an empty segment.
        ValueError: the units have another number of records.
    """
    if lead:
        if len(sizes) and int(sizes.max()) > MOST_ENTRY_SIZE - lead:
            raise TooLargeError(
                f"a record has {sizes.max()} bytes, and one in the log of a group has at most "
                f"{MOST_ENTRY_SIZE - lead}"
            )
        placement = place(sizes + np.int64(lead), begin, segment_size, unit_ends)
        return replace(placement, physical=placement.physical + lead)
    count = len(sizes)
    if unit_ends is not None and (int(unit_ends[-1]) if len(unit_ends) else 0) != count:
        raise ValueError(f"the units do not end with the last of {count} records")
    if not count:
        return Placement(begin, begin, np.empty(0, np.int64), (), (), ())
    ends = sizes.cumsum(dtype=np.int64) if starts is None else starts + sizes
    total = int(ends[-1])
    if begin % segment_size + total + BLANK_SIZE <= segment_size:
        physical = (ends - sizes if starts is None else starts) + begin
        piece = Piece(0, count, begin, begin + total)
        return Placement(begin, piece.end, physical, (piece,), (), (begin - begin % segment_size,))
    # Segments may end behind these rows, and these bytes.
    rows, stops = (None, ends) if unit_ends is None else (unit_ends, ends[unit_ends - 1])
    _require_room(stops, rows, segment_size)
    physical = np.empty(count, np.int64)
    pieces, blanks = list[Piece](), list[int]()
    first, at = 0, begin
    while first < count:
        before = int(ends[first - 1]) if first else 0
        room = segment_size - at % segment_size - BLANK_SIZE
        last = int(np.searchsorted(stops, before + room, side="right"))
        if rows is not None:
            last = int(rows[last - 1]) if last else 0
        if last > first:
            end = at + int(ends[last - 1]) - before
            physical[first:last] = ends[first:last] - sizes[first:last] + (at - before)
            pieces.append(Piece(first, last, at, end))
            at = end
        if last < count:
            blanks.append(at)
            at += segment_size - at % segment_size
        first = last
    placed = sum(piece.end - piece.begin for piece in pieces)
    assert placed == total, f"{placed} of {total} bytes of records were given places"
    written = {offset - offset % segment_size for offset in (*blanks, *(p.begin for p in pieces))}
    return Placement(begin, at, physical, tuple(pieces), tuple(blanks), tuple(sorted(written)))


def pieces_to_write(
    placement: Placement, data: U1, starts: I8, segment_size: int
) -> Iterator[tuple[int, Sequence[memoryview | bytes]]]:
    """Yield what to write where: the records of each segment, with the blank that closes it.

    Args:
        placement: the places of n contiguous records.
        data: uint8, their bytes.
        starts: n offsets into it.
        segment_size: bytes of a segment.

    Yields:
        A physical offset, and the chunks of bytes that belong there. A blank that closes a segment
        before the first record comes first.
    """
    blanks = set(placement.blanks)
    if placement.begin in blanks:
        yield placement.begin, [blank_head(placement.begin, segment_size)]
    for piece in placement.pieces:
        source = int(starts[piece.first])
        chunks: list[memoryview | bytes]
        chunks = [data[source : source + piece.end - piece.begin].data]
        if piece.end in blanks:
            chunks.append(blank_head(piece.end, segment_size))
        yield piece.begin, chunks


def blank_head(at: int, segment_size: int) -> bytes:
    """Return the head of the blank that closes a segment from a physical offset on.

    The bytes after it may be anything, and are zeros already.
    """
    return encode_blank(segment_size - at % segment_size)[:BLANK_SIZE]


def _require_room(stops: I8, rows: I8 | None, segment_size: int) -> None:
    """Check that each unit fits into a segment.

    Args:
        stops, rows: the bytes up to the end of each, and its records; None: one in each.
        segment_size: bytes of a segment.
    """
    sizes = np.diff(stops, prepend=0)
    number = int(sizes.argmax())
    if sizes[number] + BLANK_SIZE > segment_size:
        is_batch = rows is not None and np.diff(rows, prepend=0)[number] > 1
        raise TooLargeError(
            f"a {'batch of messages' if is_batch else 'record'} has {sizes[number]} bytes, and a "
            f"segment of the CommitLog has room for {segment_size - BLANK_SIZE}. Send less at a "
            "time, or set a larger mappedFileSizeCommitLog for a new store"
        )
