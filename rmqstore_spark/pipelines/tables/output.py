"""The bookkeeping of a backfill in a table's folder, and its commit to the table.

    TABLE/_backfill/ID/...    the plan, the finished attempts, the committed ones (`RunFolder`)
    TABLE/data/ID/7-UUID/...  the files of an attempt at piece 7, where they stay

ID is computed from the arguments, so the same command finds the same folder; and it is the name of
the application whose version 1 the commit is, so the table itself knows whether it has the rows,
whatever became of the folder. Readers of a table see only files of its commits.

Until the commit, no attempt is removed: the driver of another run, believed dead, may be about to
commit it. After it, nobody else can.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
from fsspec.core import url_to_fs

from rmqstore_spark.errors import OptionError, RmqStoreError
from rmqstore_spark.pipelines.output_errors import writing
from rmqstore_spark.pipelines.parquet.files import (
    FileFormat,
    Partition,
    PartitionedWriter,
    WrittenFile,
    read_back,
)
from rmqstore_spark.pipelines.parquet.output import Attempt, RunFolder
from rmqstore_spark.pipelines.parquet.task import piece_of
from rmqstore_spark.pipelines.tables.table import DataFile, LakeTable, append_once
from rmqstore_spark.reader.options import QueueSplit, ScanSplit

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


_FILTERS: Final = ("tags", "keys")


class _Queue(NamedTuple):
    broker: str
    topic: str
    queue_id: int


def describe_overlap(plan: Mapping[str, Any], other: Mapping[str, Any]) -> str | None:
    """Describe messages that two plans have in common; None if there are none.

    Two plans that choose by different tags or keys may read the same range.
    """
    chosen, others = _filters(plan), _filters(other)
    if chosen and others and chosen != others:
        return None
    if same_place(plan, other) and (_is_scan(plan) or _is_scan(other)):
        return "messages of the same log, whose queues are unknown"
    earlier = dict(_ranges(other))
    for queue, (start, end) in _ranges(plan):
        if queue in earlier and max(start, earlier[queue][0]) < min(end, earlier[queue][1]):
            first, last = earlier[queue]
            return f"{queue.topic}/{queue.queue_id} of {queue.broker} from {first} to {last - 1}"
    return None


def same_place(plan: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether two plans read the stores of the same path or address."""
    return _place(plan) == _place(other)


def _filters(plan: Mapping[str, Any]) -> dict[str, str]:
    given = {name: str(plan["arguments"].get(name) or "").strip() for name in _FILTERS}
    return {name: text for name, text in given.items() if text not in ("", "*")}


def _place(plan: Mapping[str, Any]) -> list[Any]:
    return [plan["arguments"].get(name) for name in ("path", "endpoint", "namesrvAddr")]


def _is_scan(plan: Mapping[str, Any]) -> bool:
    return plan["rows"] is None


def _ranges(plan: Mapping[str, Any]) -> Iterator[tuple[_Queue, tuple[int, int]]]:
    """Yield the range of offsets of each queue. A plan has one, in parts or as a whole.

    A log without a ConsumeQueue has none: the offsets are unknown before it is read.
    """
    found: dict[_Queue, tuple[int, int]] = {}
    for stored in plan["pieces"]:
        piece = piece_of(stored, "")
        for split in piece.splits:
            if isinstance(split, ScanSplit):
                continue
            for each in (split.range,) if isinstance(split, QueueSplit) else split.ranges:
                queue = _Queue(str(piece.broker_name), each.topic, each.queue_id)
                start, end = found.get(queue, (each.start, each.end))
                found[queue] = (min(start, each.start), max(end, each.end))
    yield from found.items()


_OWN: Final = "_backfill"
_VERSION: Final = 1


def table_folder(table: LakeTable, options: Mapping[str, str]) -> tuple[Any, str]:
    """Return the file system of a table's folder, and the folder's path on it.

    Args:
        options: options of fsspec.
    """
    fs, root = url_to_fs(table.location, **options)
    return fs, root.rstrip("/")


def data_file(folder: str, file: WrittenFile) -> DataFile:
    """Return a file as a table appends it.

    Args:
        folder: path of the writer's folder below the table's.
    """
    partition = Partition(file.topic, file.day)
    return DataFile(f"{folder}/{file.path}", file.rows, file.size, partition, file.statistics)


class TableOutput:
    """A backfill into a table.

    Args:
        table: the table.
        options: options of fsspec for the table's folder.
        identity: the arguments that make a backfill the same as another.
    """

    def __init__(
        self, table: LakeTable, options: Mapping[str, str], identity: Mapping[str, Any]
    ) -> None:
        self.url = table.name
        text = json.dumps(identity, sort_keys=True)
        self._id = f"backfill-{hashlib.sha256(text.encode()).hexdigest()[:32]}"
        self._table = table
        self.file_schema = table.file_schema
        fs, self._root = table_folder(table, options)
        self.folder = RunFolder(
            fs, f"{self._root}/{_OWN}/{self._id}", f"{self._root}/data/{self._id}"
        )

    def read_plan(self) -> dict[str, Any] | None:
        """Return the plan that a run with the same arguments has left, or None before the first.

        Also None if the table has the rows, and the bookkeeping was removed since.
        """
        if self.is_published and self.folder.decided() is None:
            return None
        return self.folder.read_plan()

    def write_plan(self, plan: Mapping[str, Any]) -> dict[str, Any]:
        """Store the plan of a new backfill, and return it in its stored form.

        Raises:
            OptionError: an earlier backfill into the table has some of the messages.
        """
        stored = json.loads(json.dumps(plan))
        for name in self.folder.names(f"{self._root}/{_OWN}"):
            other = RunFolder(self.folder.fs, f"{self._root}/{_OWN}/{name}", "").read_plan()
            found = other and describe_overlap(stored, other)
            if found:
                given = json.dumps(other and other["arguments"])
                elsewhere = other and not same_place(stored, other)
                name_it = (
                    "If it was of another store, give this one a name of its own (--brokerNames). "
                )
                raise OptionError(
                    f"An earlier backfill into {self.url} has {found}: repeat its arguments to "
                    f"continue it ({given}), start where it ends (--startingOffsets), or use "
                    f"another table. {name_it if elsewhere else ''}"
                    f"To give it up unfinished, remove {self._root}/{_OWN}/{name}."
                )
        return self.folder.write_plan(plan)

    def finished_attempts(self) -> list[Attempt]:
        """Return one finished attempt for each piece that has any."""
        return self.folder.finished_attempts()

    def commit(self, attempts: Collection[Attempt]) -> list[Attempt]:
        """Commit attempts, one for each piece, unless another run has.

        Returns:
            The committed attempts.

        Raises:
            RmqStoreError: files are missing, or the table could not be written.
        """
        decided = self.committed()
        if decided is not None:
            return decided
        lost = [attempt for attempt in attempts if not self.folder.is_whole(attempt)]
        if lost:
            path = self.folder.attempt_path(lost[0].folder)
            raise RmqStoreError(
                f"Files of {path} were changed or removed. Repeat the command to write them again."
            )
        self.folder.decide(attempts, once=False)  # for later reports
        files = [
            data_file(f"data/{self._id}/{attempt.folder}", file)
            for attempt in attempts
            for file in attempt.files
        ]
        if files and append_once(self._table, files, self._id, _VERSION):
            self.folder.remove_attempts(but=attempts)
        return list(attempts)

    def committed(self) -> list[Attempt] | None:
        """Return the committed attempts, or None before the commit."""
        self._table.refresh()
        return self.folder.decided() if self.is_published else None

    def publish(self, attempts: Iterable[Attempt]) -> None:
        """Do nothing: readers see what is committed."""

    @property
    def is_published(self) -> bool:
        """Whether the table has the rows."""
        return self._table.version_of(self._id) is not None


_COLUMN: Final = "file"


@dataclass(frozen=True)
class BatchTask:
    """Writes the rows of one partition; for `DataFrame.mapInArrow`.

    Args:
        fs: an fsspec file system.
        folder: path of the batch's folder.
        schema: the schema of the files.
        file_format: their format.
    """

    fs: Any
    folder: str
    schema: pa.Schema
    file_format: FileFormat

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write batches, and yield the files as JSON.

        Raises:
            RmqStoreError: the folder cannot be written.
        """
        prefix = f"part-{uuid.uuid4().hex[:16]}"
        with writing(self.folder):
            with PartitionedWriter(
                self.fs, self.folder, prefix, self.schema, self.file_format
            ) as writer:
                for batch in batches:
                    writer.write(batch)
            files = [read_back(self.fs, self.folder, file) for file in writer.finished]
        if files:
            texts = pa.array([json.dumps(asdict(file)) for file in files], pa.string())
            yield pa.RecordBatch.from_arrays([texts], [_COLUMN])


class TableSink:
    """Appends the batches of one query; for `foreachBatch`.

    Args:
        table: the table.
        options: options of fsspec for the table's folder.
        file_format: the format of the files.

    Attributes:
        query_id: the query's id; batches wait for it.
    """

    def __init__(
        self, table: LakeTable, options: Mapping[str, str], file_format: FileFormat
    ) -> None:
        self.query_id: Future[str] = Future()
        self._table = table
        self._format = file_format
        self._fs, self._root = table_folder(table, options)

    def __call__(self, rows: DataFrame, batch: int) -> None:
        """Write a batch, unless the table has it.

        Raises:
            RmqStoreError: the table could not be written.
        """
        application = self.query_id.result()
        self._table.refresh()
        last = self._table.version_of(application)
        if last is not None and last >= batch:
            print(f"batch {batch}: the table has it already", flush=True)
            return
        folder = f"data/{application}/{batch}-{uuid.uuid4().hex}"
        task = BatchTask(self._fs, f"{self._root}/{folder}", self._table.file_schema, self._format)
        written = rows.mapInArrow(task, f"{_COLUMN} string").collect()
        files = [WrittenFile(**json.loads(row[0])) for row in written]
        if files:
            append_once(
                self._table, [data_file(folder, file) for file in files], application, batch
            )
