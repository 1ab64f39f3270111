"""Checks bytes of another store's log before they are appended to a copy of that log.

Nothing in the bytes is trusted: they may come from a foreign process. They may end anywhere, also
within a record.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from rmqstore_spark.engine.recovery.redispatch import LogBlock
from rmqstore_spark.errors import BlockError, ReplicationError
from rmqstore_spark.layout.constants import BLANK_SIZE
from rmqstore_spark.layout.fields import MAX_RECORD_SIZE, MIN_RECORD_SIZE
from rmqstore_spark.layout.kernel.reference.plain import STOP_BAD, STOP_BLANK
from rmqstore_spark.layout.record.block import read_block
from rmqstore_spark.layout.record.format import (
    STATUS_TEXT,
    Walk,
    check_crcs,
    decode_records,
    walk_records,
)
from rmqstore_spark.layout.spans import U1

MAX_UNIT_SIZE: Final = MAX_RECORD_SIZE + BLANK_SIZE
"""Bytes of the largest record or blank: a blank is there because a record did not fit."""

_MANY_ROWS: Final = 1 << 20


@dataclass(frozen=True)
class Stamped:
    """Whole records and blanks of a log.

    Attributes:
        parts: the records between two blanks each, in order.
        size: bytes of all records and blanks.
    """

    parts: tuple[LogBlock, ...]
    size: int


def check_stamped(data: U1, begin: int, segment_size: int) -> Stamped:
    """Find the whole records and blanks at the start of some bytes of a log, and check them.

    Args:
        data: uint8, contiguous; what is found refers to it.
        begin: physical offset of the first byte, where a record or a blank begins.
        segment_size: bytes of a segment.

    Returns:
        What is whole. An incomplete record or blank at the end is left out.

    Raises:
        ReplicationError: the bytes are not those of a log with such segments, or a record is
            damaged: its place, its lengths or the CRC of its body are wrong.
    """
    parts: list[LogBlock] = []
    at = 0
    while at < len(data):
        left = segment_size - (begin + at) % segment_size
        end = min(len(data), at + left)
        walk = walk_records(data, at, end, begin, limit=_MANY_ROWS)
        if len(walk.positions):
            parts.append(_checked(data, walk, begin))
        if walk.stop == STOP_BAD:
            raise _broken(begin + walk.at, "no record begins here")
        size = _unit_size(data, walk, begin, left - (walk.at - at), segment_size)
        if walk.stop == STOP_BLANK and size <= len(data) - walk.at:
            at = walk.at + size
        elif walk.at == end and end - at == left:
            at = walk.at  # a record fills the segment
        else:
            return Stamped(tuple(parts), walk.at)
    return Stamped(tuple(parts), at)


def _unit_size(data: U1, walk: Walk, begin: int, left: int, segment_size: int) -> int:
    """Return the size that the record or blank states at which a walk stopped; 0 if not known yet.

    Args:
        left: bytes from there to the end of the segment.
    """
    head = data[walk.at : walk.at + BLANK_SIZE]
    if len(head) < 4 or not left:
        return 0
    size = int.from_bytes(head[:4].tobytes(), "big")
    place = begin + walk.at
    if size > MAX_UNIT_SIZE:
        raise _broken(place, f"what begins here states {size} bytes")
    if walk.stop == STOP_BLANK:
        if size == left:
            return size
        sizes = f"a blank ends the segment at {place + size}"
    elif len(head) == BLANK_SIZE and size >= MIN_RECORD_SIZE and size + BLANK_SIZE > left:
        sizes = f"a record extends to {place + size}"
    else:
        return size
    raise ReplicationError(
        f"The master's segments have another size than this store's ({segment_size} bytes): at "
        f"physical offset {place}, {sizes}, and here the segment ends at {place + left}. Set "
        "mappedFileSizeCommitLog to the master's value, and begin again with --restart-from "
        "earliest (or with a new store)."
    )


def _checked(data: U1, walk: Walk, begin: int) -> LogBlock:
    """Check the records that a walk has found."""
    positions = walk.positions
    rooms = (walk.at - positions).astype(np.int32)
    records = check_crcs(decode_records(data, positions, rooms), bodies=True)
    bad = records.status != 0
    if bad.any():
        row = int(np.argmax(bad))
        raise _broken(begin + int(positions[row]), STATUS_TEXT[int(records.status[row])])
    first = int(positions[0])
    try:
        block = read_block(data[first : walk.at], max_rows=_MANY_ROWS)
    except BlockError as error:
        raise _broken(begin + first + error.at, error.cause) from error
    return LogBlock(block, records, begin + first)


def _broken(offset: int, cause: str) -> ReplicationError:
    return ReplicationError(
        f"The master sent bytes that are not a CommitLog: {cause} (physical offset {offset}). "
        "Nothing of them was stored. If this persists, check the master's log there with "
        "`rmqstore verify`."
    )
