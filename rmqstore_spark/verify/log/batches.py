"""Checks that the log holds all of each Spark batch that begins in it.

See docs/format.md, "A block that is not published yet": the first record of a batch says where the
batch ends, and all of its records have one storeTimestamp.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rmqstore_spark.layout.record.format import batch_ends
from rmqstore_spark.verify.findings import Findings, Place
from rmqstore_spark.verify.log_batch import LogBatch


@dataclass(frozen=True)
class _Begun:
    """A batch of which more records have to follow.

    Attributes:
        place: of its first record.
        time: storeTimestamp of its records, ms.
        end: physical offset at which it ends.
    """

    place: Place
    time: int
    end: int


class BatchChecker:
    """Follows the batches of a log through its records, in order.

    Args:
        findings: collects the problems.
    """

    def __init__(self, findings: Findings) -> None:
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
            self._begun = _Begun(batch.place(row), int(times[row]), int(ends[row]))
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
        self._begun = None
