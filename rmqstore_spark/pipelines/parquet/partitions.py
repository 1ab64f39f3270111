"""Split rows by topic and date, and name their folders as Hive does."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from datetime import date, timedelta
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

# Hive's list (FileUtils.charToEscape), which Spark uses too.
_ESCAPED: Final = re.compile(r"""[\x00-\x1f\x7f"#%'*/:=?\\{\[\]^]""")
_NULL: Final = "__HIVE_DEFAULT_PARTITION__"

_DAY_MICROS: Final = 86_400_000_000
_NO_DAY: Final = np.iinfo(np.int64).min
_EPOCH: Final = date(1970, 1, 1)


class Partition(NamedTuple):
    """A topic on a day.

    Args:
        topic: its name.
        day: days since 1970 of storeTimestamp in UTC; None for times outside the years 1 to 9999.
    """

    topic: str
    day: int | None

    @property
    def date(self) -> str | None:
        """The day as `YYYY-MM-DD`."""
        return None if self.day is None else (_EPOCH + timedelta(days=self.day)).isoformat()

    @property
    def folder(self) -> str:
        """The folder below the output: `topic=NAME/date=YYYY-MM-DD`."""
        return f"topic={_escape(self.topic)}/date={self.date or _NULL}"

    def dates(self, rows: int) -> pa.Array:
        """Return a column with the day in each row."""
        return pa.repeat(pa.scalar(self.day, pa.int32()).cast(pa.date32()), rows)


def _escape(value: str) -> str:
    escaped = _ESCAPED.sub(lambda match: f"%{ord(match[0]):02X}", value)
    # A topic of this name would read back as null.
    return escaped.replace("_", "%5F") if escaped == _NULL else escaped


def split_by_partition(batch: pa.RecordBatch) -> Iterator[tuple[Partition, pa.RecordBatch]]:
    """Split a batch by partition; rows keep their order.

    Args:
        batch: has the columns topic (string) and storeTimestamp (microseconds, UTC).
    """
    if not batch.num_rows:
        return
    topics = batch.column("topic").dictionary_encode()
    micros = batch.column("storeTimestamp").cast(pa.int64())
    days = np.asarray(micros.fill_null(0)) // _DAY_MICROS
    if micros.null_count:
        days[np.asarray(micros.is_null())] = _NO_DAY
    known_days, day_codes = _codes(days)
    codes = topics.indices.to_numpy().astype(np.int64) * len(known_days) + day_codes
    names = topics.dictionary.to_pylist()

    def partition(code: int) -> Partition:
        topic, day = divmod(code, len(known_days))
        found = known_days[day]
        return Partition(names[topic], None if found == _NO_DAY else found)

    if codes[0] == codes[-1] and (codes == codes[0]).all():
        yield partition(int(codes[0])), batch
        return
    order = np.argsort(codes, kind="stable")
    ordered = codes[order]
    starts = [0, *(np.flatnonzero(np.diff(ordered)) + 1).tolist(), len(ordered)]
    for start, end in itertools.pairwise(starts):
        # One `take` each: slices of a common array would keep all of it in memory.
        yield partition(int(ordered[start])), batch.take(pa.array(order[start:end]))


def _codes(days: np.ndarray[tuple[int], np.dtype[np.int64]]) -> tuple[list[int], np.ndarray]:
    """Return the distinct days, and the number of each row's day."""
    if days[0] == days[-1] and (days == days[0]).all():  # nearly always
        return [int(days[0])], np.zeros(len(days), np.int64)
    known, codes = np.unique(days, return_inverse=True)
    return known.tolist(), codes
