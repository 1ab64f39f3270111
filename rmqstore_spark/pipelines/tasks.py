"""What tasks of jobs run, besides `parquet.task`: a limit to the rate of rows; checks of stores."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from rmqstore_spark.datasource.failures import host_name
from rmqstore_spark.datasource.sources.store import StoreSpec
from rmqstore_spark.errors import RmqStoreError, StoreNotFoundError
from rmqstore_spark.verify import Findings, Snapshot, Unit, check_unit

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

RATE_SECONDS: Final = 10
"""The rows of this many seconds are committed together; the rate is an average over them."""

_ROWS_AT_ONCE: Final = 250_000  # 1 GB, the maximum of one commit, for messages of 4 KiB


class Pace:
    """Passes batches on at a rate; it does not catch up after delays.

    Args:
        rows_per_second: 1 or more.
        clock, wait: seconds.
    """

    def __init__(
        self,
        rows_per_second: float,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rate = rows_per_second
        self._clock = clock
        self._wait = wait

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the same rows, in pieces of at most a tenth of a second."""
        piece = max(1, int(self._rate / 10))
        due = self._clock()
        for batch in batches:
            for start in range(0, len(batch), piece):
                rows = batch.slice(start, piece)
                now = self._clock()
                if due > now:
                    self._wait(due - now)
                due = max(due, now) + len(rows) / self._rate
                yield rows
        # The next task begins its own pace.
        self._wait(max(0.0, due - self._clock()))


def rows_at_once(rows_per_second: float | None) -> int:
    """Return how many rows are committed together, with or without a rate."""
    if rows_per_second is None:
        return _ROWS_AT_ONCE
    return min(_ROWS_AT_ONCE, int(rows_per_second * RATE_SECONDS))


def paced(rows: DataFrame, rows_per_second: float) -> DataFrame:
    """Limit the rate of rows: one task reads all of them, and passes them on."""
    return rows.coalesce(1).mapInArrow(Pace(rows_per_second), rows.schema)


@dataclass(frozen=True)
class VerifyTask:
    """Checks units of a store.

    Args:
        spec: opens the store.
        snapshot: the store as the driver saw it.
    """

    spec: StoreSpec
    snapshot: Snapshot

    def __call__(self, units: Sequence[Unit]) -> Findings:
        """Check some units.

        Raises:
            RmqStoreError: this machine does not see the store.
        """
        findings = Findings(self.snapshot.listed)
        try:
            store = self.spec.open()
        except StoreNotFoundError as error:
            raise RmqStoreError(
                f"{self.spec.url} cannot be found on host {host_name()}: stores must be "
                "accessible to all executors under the same path."
            ) from error
        with store:
            for unit in units:
                findings.merge(check_unit(store, self.snapshot, unit))
        return findings
