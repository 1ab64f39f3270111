"""Write rows into Parquet files by partition, directly from Arrow batches."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta, timezone
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rmqstore_spark.errors import RmqStoreError
from rmqstore_spark.layout.spans import int_array, numbers_of

# Hive's list (FileUtils.charToEscape), which Spark uses too.
_ESCAPED: Final = re.compile(r"""[\x00-\x1f\x7f"#%'*/:=?\\{\[\]^]""")
_NULL: Final = "__HIVE_DEFAULT_PARTITION__"

_DAY_MICROS: Final = 86_400_000_000
_NO_DAY: Final = np.iinfo(np.int64).min
_EPOCH: Final = date(1970, 1, 1)
_EPOCH_TIME: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)


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
    if micros.null_count:
        days = np.asarray(micros.fill_null(0)) // _DAY_MICROS
        days[np.asarray(micros.is_null())] = _NO_DAY
    else:
        days = numbers_of(micros) // _DAY_MICROS
    known_days, day_codes = _codes(days)
    codes = numbers_of(topics.indices).astype(np.int64) * len(known_days) + day_codes
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
        yield partition(int(ordered[start])), batch.take(int_array(order[start:end]))


def _codes(days: np.ndarray[tuple[int], np.dtype[np.int64]]) -> tuple[list[int], np.ndarray]:
    """Return the distinct days, and the number of each row's day."""
    if days[0] == days[-1] and (days == days[0]).all():  # nearly always
        return [int(days[0])], np.zeros(len(days), np.int64)
    known, codes = np.unique(days, return_inverse=True)
    return known.tolist(), codes


CODECS: Final = ("zstd", "snappy", "gzip", "lz4", "none")

_BUFFERED: Final = 256 << 20
"""Maximum bytes that wait for their row groups, over all partitions of a task."""

# A writer tries a dictionary first, and drops it when it exceeds a megabyte. For values that rarely
# repeat, that is wasted work.
_WITH_DICTIONARY: Final = frozenset({
    "brokerName", "queueId", "tags", "bornHost", "storeHost", "flag", "sysFlag", "reconsumeTimes",
    "preparedTransactionOffset", "properties.key_value.key", "topic", "date",
})  # fmt: skip
# Bounds help range queries; those of a body would only enlarge the footers.
WITHOUT_BOUNDS: Final = frozenset({"body", "properties", "msgId", "bodyCRC"})


@dataclass(frozen=True)
class FileFormat:
    """The format of the files.

    Args:
        codec: one of CODECS.
        row_group_bytes: approximate Arrow data in one row group.
        file_bytes: a file of this size is closed, and another one begun.
    """

    codec: str = "zstd"
    row_group_bytes: int = 64 << 20
    file_bytes: int = 512 << 20

    @property
    def suffix(self) -> str:
        """The end of each file's name."""
        return ".parquet" if self.codec == "none" else f".{self.codec}.parquet"

    def settings(self, schema: pa.Schema) -> dict[str, Any]:
        """Return the arguments of `pyarrow.parquet.ParquetWriter` for files of a schema."""
        return {
            "compression": self.codec,
            "use_dictionary": sorted(_WITH_DICTIONARY),
            "write_statistics": [name for name in schema.names if name not in WITHOUT_BOUNDS],
        }


@dataclass(frozen=True)
class WrittenFile:
    """A finished file.

    Args:
        path: path below the writer's folder.
        rows, size: rows and bytes of the whole file.
        topic, day: its partition.
        statistics: as `read_back` returns them.
    """

    path: str
    rows: int
    size: int
    # Backfills of earlier versions, which can be continued, did not store these.
    topic: str = ""
    day: int | None = None
    statistics: str | None = None


@dataclass
class _OpenFile:
    """The rows of one partition that are being written."""

    waiting: list[pa.RecordBatch] = field(default_factory=list)
    waiting_bytes: int = 0
    path: str = ""
    sink: Any = None
    writer: Any = None
    rows: int = 0


class PartitionedWriter:
    """Writes rows into one or more files per partition.

    Each goes to FOLDER/topic=NAME/date=YYYY-MM-DD/PREFIX-NNN.CODEC.parquet. A context manager:
    leaving it with an exception closes all open files.

    Args:
        fs: an fsspec file system.
        folder: path of a folder on `fs`.
        prefix: start of the files' names.
        columns: the columns to write, by name, as the batches have them; or a schema, whose types
            the batches are cast to, and which can have the partition's `topic` and `date`. Others
            of a batch only choose the partition.
        file_format: the format of the files.
    """

    def __init__(
        self,
        fs: Any,
        folder: str,
        prefix: str,
        columns: tuple[str, ...] | pa.Schema,
        file_format: FileFormat,
    ) -> None:
        self._fs = fs
        self._folder = folder
        self._prefix = prefix
        self._columns = columns
        self._format = file_format
        self._open: dict[Partition, _OpenFile] = {}
        self._count = 0
        self.waiting_bytes = 0
        self.finished: list[WrittenFile] = []

    def __enter__(self) -> PartitionedWriter:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.finish()
            return
        for file in self._open.values():
            # The original exception is being raised, and these files will be deleted.
            with contextlib.suppress(Exception):
                if file.writer is not None:
                    file.writer.close()
                    file.sink.close()

    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows."""
        for partition, rows in split_by_partition(batch):
            file = self._open.setdefault(partition, _OpenFile())
            chosen = self._chosen(rows, partition)
            file.waiting.append(chosen)
            file.waiting_bytes += chosen.nbytes
            self.waiting_bytes += chosen.nbytes
            if file.waiting_bytes >= self._format.row_group_bytes:
                self._write_group(partition, file)
        while self.waiting_bytes > _BUFFERED:
            largest = max(self._open, key=lambda key: self._open[key].waiting_bytes)
            self._write_group(largest, self._open[largest])

    def finish(self) -> None:
        """Write the waiting rows, and close all files."""
        for partition, file in self._open.items():
            self._write_group(partition, file)
            self._close(partition, file)
        self._open.clear()

    def _chosen(self, rows: pa.RecordBatch, partition: Partition) -> pa.RecordBatch:
        if not isinstance(self._columns, pa.Schema):
            return rows.select(list(self._columns))
        arrays = [
            partition.dates(rows.num_rows) if each.name == "date" else rows.column(each.name)
            for each in self._columns
        ]
        return pa.RecordBatch.from_arrays(arrays, names=self._columns.names).cast(self._columns)

    def _write_group(self, partition: Partition, file: _OpenFile) -> None:
        if not file.waiting:
            return
        table = pa.Table.from_batches(file.waiting)
        # A single batch can exceed the size of a row group.
        groups = max(1, -(-file.waiting_bytes // self._format.row_group_bytes))
        self.waiting_bytes -= file.waiting_bytes
        file.waiting, file.waiting_bytes = [], 0
        if file.writer is None:
            self._begin(partition, file, table.schema)
        file.writer.write_table(table, row_group_size=-(-table.num_rows // groups))
        file.rows += table.num_rows
        if file.sink.tell() >= self._format.file_bytes:
            self._close(partition, file)

    def _begin(self, partition: Partition, file: _OpenFile, schema: pa.Schema) -> None:
        name = f"{self._prefix}-{self._count:03d}{self._format.suffix}"
        self._count += 1
        file.path, file.rows = f"{partition.folder}/{name}", 0
        path = f"{self._folder}/{file.path}"
        self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)
        file.sink = self._fs.open(path, "wb")
        file.writer = pq.ParquetWriter(
            file.sink,
            schema,
            **self._format.settings(schema),
        )

    def _close(self, partition: Partition, file: _OpenFile) -> None:
        if file.writer is None:
            return
        file.writer.close()
        size = file.sink.tell()
        file.sink.close()
        file.writer = file.sink = None
        self.finished.append(WrittenFile(file.path, file.rows, size, *partition))


_EXACT: Final = (pa.types.is_integer, pa.types.is_timestamp)


def read_back(fs: Any, folder: str, file: WrittenFile) -> WrittenFile:
    """Read the end of a file that was written, and return the file with its statistics.

    Args:
        fs: an fsspec file system.
        folder: path of the writer's folder.

    Raises:
        RmqStoreError: it does not hold the written rows.
    """
    path = f"{folder}/{file.path}"
    with fs.open(path, "rb") as stored:
        metadata = pq.read_metadata(stored)
    if metadata.num_rows != file.rows:
        raise RmqStoreError(
            f"{path} should have {file.rows:,} rows, but has {metadata.num_rows:,}."
        )
    return replace(file, statistics=_statistics(metadata))


def _statistics(metadata: pq.FileMetaData) -> str:
    """Return the statistics of a file, as Delta's protocol stores them ("Per-file Statistics").

    Bounds are those of numbers and times. Times have milliseconds, as in RocketMQ; Delta stores no
    more digits.
    """
    schema = metadata.schema.to_arrow_schema()
    bounded = {each.name for each in schema if any(kind(each.type) for kind in _EXACT)}
    least: dict[str, Any] = {}
    most: dict[str, Any] = {}
    for index in range(metadata.num_columns):
        name = metadata.schema.column(index).path
        if name not in bounded:
            continue
        found = _bounds(metadata, index)
        if found is not None:
            least[name], most[name] = found
    return json.dumps({"numRecords": metadata.num_rows, "minValues": least, "maxValues": most})


def _bounds(metadata: pq.FileMetaData, index: int) -> tuple[Any, Any] | None:
    """Return the lowest and the highest value of a column; None if a row group does not say."""
    low, high = [], []
    is_time = metadata.schema.column(index).logical_type.type == "TIMESTAMP"
    for group in range(metadata.num_row_groups):
        found = metadata.row_group(group).column(index).statistics
        if found is None or not found.has_min_max:
            return None
        # Not `min` and `max`, which load pandas, if it is installed, to make a time.
        low.append(found.min_raw)
        high.append(found.max_raw)
    if not low:
        return None
    bounds = min(low), max(high)
    return (_time(bounds[0]), _time(bounds[1])) if is_time else bounds


def _time(micros: int) -> str:
    time = _EPOCH_TIME + timedelta(microseconds=micros)
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
