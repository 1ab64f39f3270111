"""Read a partition from one replica of its store after the other, each row once.

A replica is read strictly as long as there may be a better one: what has expired in it, or is
damaged there, another one can have. Only when none has it do `failOnDataLoss` and `mode` decide.
Plans use the same rules for what can be wrong with a replica, and for how long to wait for one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from rmqstore_spark.client.patience import can_pass, rounds, told
from rmqstore_spark.datasource.options.connection import patience_s
from rmqstore_spark.datasource.sources.evidence import Evidence
from rmqstore_spark.datasource.sources.store import (
    StorePartition,
    StoreSpec,
    close_kept,
    open_kept,
)
from rmqstore_spark.errors import (
    CorruptStoreError,
    DataLossError,
    ReplicaError,
    RmqStoreError,
)
from rmqstore_spark.reader.options import QueueSplit, Split

if TYPE_CHECKING:
    from rmqstore_spark.datasource.options.parsing import Options
    from rmqstore_spark.reader.options import ReadOptions

_log = logging.getLogger("rmqstore_spark")

FAILURES: Final = (RmqStoreError, OSError)
"""What can be wrong with one replica and right with another."""

_OVER: Final = object()
_AVOIDED: Final = 30.0
_failed_at: dict[str, float] = {}
"""When replicas failed, by URL: the tasks that this worker runs next should not wait for them."""


def no_replica(broker: str | None, failures: dict[str, Exception]) -> ReplicaError:
    """Return the error for a store of whose replicas none can be read."""
    of = "the store" if broker is None else broker
    return ReplicaError(
        f"No replica of {of} can be read now. {told(failures)} Start one of them, or wait until "
        "one has caught up; a stream then continues from its checkpoint.",
        can_pass=True,
    )


class _Place:
    """How far the splits of a partition have been read: everything before this is with Spark.

    Within a split, rows ascend by an offset. A log split can have several rows of one record.
    """

    def __init__(self) -> None:
        self.split = 0
        self._last = -1
        self._same = 0
        self._to_skip = 0

    def rest_of(self, split: Split) -> Split:
        """Return what is left of the current split, and begin to read it.

        The rest of a log split still has the rows of its last record: they are skipped.
        """
        self._to_skip = self._same
        if self._last < 0 or not isinstance(split, QueueSplit):
            return split
        return replace(split, range=replace(split.range, start=self._last + 1))

    def new_rows(self, batch: pa.RecordBatch, offsets: pa.Array) -> pa.RecordBatch:
        """Return the rows that have not been read before, and count them as read.

        Args:
            batch: n rows.
            offsets: i8[n], ascending.
        """
        found = offsets.to_numpy()
        first, behind = (
            int(np.searchsorted(found, self._last, side)) for side in ("left", "right")
        )
        skipped = min(self._to_skip, behind - first)
        self._to_skip -= skipped
        first += skipped
        if first < len(found):
            last = int(found[-1])
            count = len(found) - max(first, int(np.searchsorted(found, last)))
            self._same = count + (self._same if last == self._last else 0)
            self._last = last
        return batch.slice(first)

    def end_split(self) -> None:
        """Continue with the next split."""
        self.split += 1
        self._last, self._same, self._to_skip = -1, 0, 0


class ReplicatedPartition(StorePartition):
    """Splits of one store that has replicas."""

    def __init__(
        self,
        plan: str,
        store: StoreSpec,
        splits: Sequence[Split],
        replicas: Sequence[StoreSpec],
        evidence: Evidence,
    ) -> None:
        super().__init__(plan, store, splits)
        self.replicas = tuple(replicas)
        self.evidence = evidence

    def read(self, wanted: ReadOptions, options: Options) -> Generator[pa.RecordBatch]:
        yield from _Reading(self, patience_s(options.places.connection)).read(wanted)


class _Reading:
    """How far a partition has been read, and which of the replicas to read next.

    Args:
        part: the partition.
        patience_s: for how many seconds without a row to look for a replica.
    """

    def __init__(self, part: ReplicatedPartition, patience_s: float) -> None:
        now = time.monotonic()
        others = (spec for spec in part.replicas if spec != part.store)
        self._specs = sorted(
            (part.store, *others),  # first the one on which the splits were planned
            key=lambda spec: now - _failed_at.get(spec.url, -_AVOIDED) < _AVOIDED,
        )
        self._part = part
        self._patience = patience_s
        self._place = _Place()
        self._failures: dict[str, Exception] = {}

    def read(self, options: ReadOptions) -> Iterator[pa.RecordBatch]:
        """Yield each row once, with the columns of the options.

        Raises:
            ReplicaError: no replica holds the splits, or none answers.
            DataLossError, CorruptStoreError: as `read_split`, if no replica has the messages whole.
        """
        strict = replace(options, mode="FAILFAST", fail_on_data_loss=True)
        yield from self._read(strict, self._patience, whole=True)
        if not self._is_done and not all(map(can_pass, self._failures.values())):
            # Nobody has all of it. What the options allow to leave out is now left out.
            yield from self._read(options, 0.0, whole=False)
        if self._is_done:
            return
        for error in self._failures.values():
            if isinstance(error, DataLossError | CorruptStoreError):
                raise error
        raise no_replica(self._specs[0].broker_name, self._failures)

    @property
    def _is_done(self) -> bool:
        return self._place.split == len(self._part.splits)

    def _read(
        self, options: ReadOptions, patience: float, *, whole: bool
    ) -> Iterator[pa.RecordBatch]:
        """Go round the replicas until one has everything, or none can have it in time."""
        waiting = rounds(patience)
        while next(waiting, _OVER) is not _OVER:
            for spec in list(self._specs):
                before = time.monotonic()
                try:
                    for batch in self._from(spec, options, whole=whole):
                        waiting = rounds(patience)
                        yield batch
                    return
                except FAILURES as error:
                    self._failed(spec, error, time.monotonic() - before)
            if not any(map(can_pass, self._failures.values())):
                return

    def _from(
        self, spec: StoreSpec, options: ReadOptions, *, whole: bool
    ) -> Iterator[pa.RecordBatch]:
        """Read what is left from one replica."""
        from rmqstore_spark.reader.plan import read_split

        store = open_kept(self._part.value, spec, is_replica=True)
        left = list(self._part.splits[self._place.split :])
        left[:1] = [self._place.rest_of(split) for split in left[:1]]
        self._part.evidence.check(store, left, whole=whole)
        for split in left:
            name = "queueOffset" if isinstance(split, QueueSplit) else "physicalOffset"
            columns = options.columns
            wanted = options if name in columns else replace(options, columns=(*columns, name))
            for batch in read_split(store, split, wanted):
                rows = self._place.new_rows(batch, batch.column(name))
                if rows.num_rows:
                    yield rows.select(range(len(columns)))
            self._place.end_split()

    def _failed(self, spec: StoreSpec, error: Exception, took: float) -> None:
        """Note that a replica failed. Read it last from now on."""
        close_kept(self._part.value, spec)
        if spec.url not in self._failures:
            _log.warning(
                "The replica %s failed after %.1f s, continuing at another: %s",
                spec.url,
                took,
                error,
            )
        self._failures[spec.url] = error
        _failed_at[spec.url] = time.monotonic()
        self._specs.remove(spec)
        self._specs.append(spec)
