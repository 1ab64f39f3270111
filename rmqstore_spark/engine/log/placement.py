"""Finds places for records: none spans two segments, and a blank closes each full segment.

See docs/format.md, "A CommitLog record" (upstream: CommitLog.DefaultAppendMessageCallback,
END_FILE_MIN_BLANK_LENGTH).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rmqstore_spark.layout.constants import BLANK_SIZE
from rmqstore_spark.layout.spans import I8

__all__ = ["Piece", "Placement", "TooLargeError", "place"]


class TooLargeError(ValueError):
    """A record is larger than a segment can hold."""


@dataclass(frozen=True)
class Piece:
    """Contiguous records in one segment.

    Attributes:
        first, last: their rows, the last one excluded.
        begin, end: physical offsets of their first byte, and of the byte after their last.
    """

    first: int
    last: int
    begin: int
    end: int


@dataclass(frozen=True)
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


def place(sizes: npt.NDArray[np.int32] | I8, begin: int, segment_size: int) -> Placement:
    """Find places for records.

    Args:
        sizes: n, bytes of each record.
        begin: where the log ends.
        segment_size: bytes of a segment; each starts at a multiple of it.

    Raises:
        TooLargeError: a record does not fit into an empty segment.
    """
    ends = sizes.cumsum(dtype=np.int64)
    total, largest = (int(ends[-1]), int(sizes.max())) if len(sizes) else (0, 0)
    if largest + BLANK_SIZE > segment_size:
        raise TooLargeError(
            f"a record has {largest} bytes, and a segment of the CommitLog has room for "
            f"{segment_size - BLANK_SIZE}. Send less at a time, or set a larger "
            "mappedFileSizeCommitLog for a new store"
        )
    if total and begin % segment_size + total + BLANK_SIZE <= segment_size:
        physical = ends - sizes + begin
        piece = Piece(0, len(sizes), begin, begin + total)
        return Placement(begin, piece.end, physical, (piece,), (), (begin - begin % segment_size,))
    physical = np.empty(len(sizes), np.int64)
    pieces, blanks = list[Piece](), list[int]()
    first, at = 0, begin
    while first < len(sizes):
        before = int(ends[first - 1]) if first else 0
        room = segment_size - at % segment_size - BLANK_SIZE
        last = int(np.searchsorted(ends, before + room, side="right"))
        if last > first:
            end = at + int(ends[last - 1]) - before
            physical[first:last] = ends[first:last] - sizes[first:last] + (at - before)
            pieces.append(Piece(first, last, at, end))
            at = end
        if last < len(sizes):
            blanks.append(at)
            at += segment_size - at % segment_size
        first = last
    written = {offset - offset % segment_size for offset in (*blanks, *(p.begin for p in pieces))}
    return Placement(begin, at, physical, tuple(pieces), tuple(blanks), tuple(sorted(written)))
