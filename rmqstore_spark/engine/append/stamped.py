"""Checks bytes of another store's log before they are appended to a copy of that log.

Nothing in the bytes is trusted: they may come from a foreign process. They may end anywhere, also
within a record.

`divide` finds where Spark batches begin and end in them, so that a copy shows each as a whole. The
first record of a batch says where the batch ends (`layout.record.format`), and all its records have
one storeTimestamp. A log can hold the first record without the rest: a slave of RocketMQ that
became the master within a batch has it. There, other records follow before the stated end, and the
records of the batch are messages like all others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from rmqstore_spark.engine.recovery.redispatch import LogBlock
from rmqstore_spark.errors import BlockError, ReplicationError
from rmqstore_spark.layout.constants import BLANK_SIZE
from rmqstore_spark.layout.fields import MAX_RECORD_SIZE, MIN_RECORD_SIZE
from rmqstore_spark.layout.kernel.reference.plain import STOP_BAD, STOP_BLANK
from rmqstore_spark.layout.record.block import read_block
from rmqstore_spark.layout.record.format import (
    STATUS_TEXT,
    Walk,
    batch_ends,
    check_crcs,
    decode_records,
    walk_records,
)
from rmqstore_spark.layout.spans import I8, U1

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
    return LogBlock(block, records, block.starts + (begin + first))


def _broken(offset: int, cause: str) -> ReplicationError:
    return ReplicationError(
        f"The master sent bytes that are not a CommitLog: {cause} (physical offset {offset}). "
        "Nothing of them was stored. If this persists, check the master's log there with "
        "`rmqstore verify`."
    )


class OpenBatch(NamedTuple):
    """A batch of which not all has come.

    Attributes:
        end: physical offset at which it ends, by its first record.
        timestamp: storeTimestamp of its records.
    """

    end: int
    timestamp: int


class Division(NamedTuple):
    """Three parts of what has come, in order; each may be empty.

    Attributes:
        plain: physical offset up to which nothing belongs to a batch.
        whole: physical offset up to which no batch is open any more.
        batch: the batch to which the rest belongs; None if there is no rest.
    """

    plain: int
    whole: int
    batch: OpenBatch | None


def divide(stamped: Stamped, begin: int, batch: OpenBatch | None) -> Division:
    """Divide what has come of a master's log where batches begin and end.

    Args:
        stamped: what has come.
        begin: physical offset of its first byte.
        batch: the batch that is open there.
    """
    rows, stop = _Rows(stamped), begin + stamped.size
    head, plain = -1, begin
    if batch is None:
        head = rows.next_head(0)
        plain = rows.place(head, stop)
    whole, row = plain, 0
    while batch is not None or head < len(rows):
        if batch is None:
            batch = rows.batch(head)
            whole, row = rows.place(head, stop), head + 1
        closed = rows.closed(batch, row)
        if closed is None:
            return Division(plain, whole, batch)
        batch, head = None, rows.next_head(closed)
    return Division(plain, stop, None)


class _Rows:
    """The records of a log.

    Args:
        stamped: they lie in its parts.
    """

    def __init__(self, stamped: Stamped) -> None:
        parts = stamped.parts
        self._starts = _joined([part.physical_offset for part in parts])
        self._ends = self._starts + _joined([part.block.sizes for part in parts])
        self._times = _joined([part.records.store_timestamp for part in parts])
        self._batch_ends = _joined(
            [batch_ends(part.records, part.physical_offset) for part in parts]
        )

    def __len__(self) -> int:
        return len(self._starts)

    def place(self, row: int, stop: int) -> int:
        """Return where a record starts, or `stop` if there is no such record."""
        return int(self._starts[row]) if row < len(self) else stop

    def next_head(self, row: int) -> int:
        """Return the first row from one on with which a batch begins."""
        heads = np.flatnonzero(self._batch_ends[row:])
        return row + int(heads[0]) if len(heads) else len(self)

    def batch(self, head: int) -> OpenBatch:
        """Return the batch that begins with a row."""
        return OpenBatch(int(self._batch_ends[head]), int(self._times[head]))

    def closed(self, batch: OpenBatch, row: int) -> int | None:
        """Return the row before which a batch is over; None if it is still open after the last.

        Args:
            batch: the batch.
            row: the first one of which it is not known that it belongs to the batch.
        """
        last = int(np.searchsorted(self._ends, batch.end))
        mine = slice(row, last + 1)
        others = self._times[mine] != batch.timestamp
        others |= (self._batch_ends[mine] != 0) | (self._ends[mine] > batch.end)
        if others.any():
            return row + int(others.argmax())
        return last + 1 if last < len(self) else None


def _joined(arrays: Sequence[npt.NDArray[Any]]) -> I8:
    return np.concatenate([np.empty(0, np.int64), *arrays])
