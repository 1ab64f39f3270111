"""Finds in a master's log where Spark batches begin and end, so that a copy shows each as a whole.

The first record of a batch says where the batch ends (`layout.record.format`), and all its records
have one storeTimestamp. A log can hold the first record without the rest: a slave of RocketMQ that
became the master within a batch has it. There, other records follow before the stated end, and the
records of the batch are messages like all others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rmqstore_spark.engine.append.stamped import Stamped
from rmqstore_spark.layout.record.format import batch_ends
from rmqstore_spark.layout.spans import I8


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
