"""The pieces of work of a backfill: how a plan stores them, and how a task writes one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa

from rmqstore_spark.datasource.failures import plain_errors
from rmqstore_spark.datasource.options.parsing import parse_options
from rmqstore_spark.datasource.partitions import read_partition
from rmqstore_spark.datasource.schema import project
from rmqstore_spark.datasource.sources import partition_of
from rmqstore_spark.datasource.sources.source import SourcePartition
from rmqstore_spark.pipelines.output_errors import writing
from rmqstore_spark.pipelines.parquet.files import FileFormat, PartitionedWriter, read_back
from rmqstore_spark.pipelines.parquet.output import Attempt, RunFolder, Tally
from rmqstore_spark.reader.options import (
    KeySplit,
    LogSplit,
    QueueRange,
    QueueSplit,
    ScanSplit,
    Split,
)
from rmqstore_spark.reader.void import VoidEntries

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

PieceItem: TypeAlias = tuple[int, Mapping[str, Any]]
"""A piece's number, and the piece as JSON."""


@dataclass(frozen=True)
class BackfillTask:
    """Reads a piece and writes its files.

    Args:
        output: the folders of the backfill.
        options: the source's options.
        schema: the columns to read.
        columns: the columns to write, as `PartitionedWriter` takes them.
        file_format: the format of the files.
        run: a name for this run.
    """

    output: RunFolder
    options: Mapping[str, str]
    schema: StructType
    columns: tuple[str, ...] | pa.Schema
    file_format: FileFormat
    run: str

    @plain_errors
    def __call__(self, item: PieceItem) -> dict[str, Any]:
        """Make an attempt at a piece.

        Returns:
            The attempt, as JSON.

        Raises:
            RmqStoreError: the store cannot be read, or the output cannot be written, or a file
                does not hold the written rows.
        """
        number, stored = item
        piece = piece_of(stored, self.run)
        options = parse_options(self.options, streaming=False)
        folder = self.output.new_attempt(number)
        path = self.output.attempt_path(folder)
        tally, void = Tally(), VoidEntries()
        with writing(self.output.data):
            with PartitionedWriter(
                self.output.fs,
                path,
                f"part-{number:05d}-{folder[-8:]}",
                self.columns,
                self.file_format,
            ) as writer:
                for batch in read_partition(piece, options, project(self.schema), void):
                    tally.add(batch)
                    writer.write(batch)
            files = tuple(read_back(self.output.fs, path, file) for file in writer.finished)
        broker = str(piece.broker_name)
        passed = Tally({(broker, *queue): count for queue, count in void.counts().items()})
        attempt = Attempt(number, folder, files, tally, passed)
        with writing(self.output.own):
            self.output.finish_attempt(attempt)
        return attempt.to_json()


_KINDS: Final[dict[str, type[Split]]] = {
    kind.__name__: kind for kind in (KeySplit, LogSplit, QueueSplit, ScanSplit)
}


def stored_piece(piece: SourcePartition) -> dict[str, Any]:
    """Convert a piece to JSON."""
    splits = [[type(split).__name__, _fields(split)] for split in piece.splits]
    return {**piece.to_json(), "splits": splits}


def _fields(split: Split) -> dict[str, Any]:
    fields = asdict(split)
    if isinstance(split, ScanSplit) and split.topics is not None:
        fields["topics"] = sorted(split.topics)
    return fields


def piece_of(stored: Mapping[str, Any], plan: str) -> SourcePartition:
    """Create a piece from JSON.

    Args:
        plan: a name that all pieces of one run, and of no other run, have in common.
    """
    splits = [_KINDS[kind](**_arguments(fields)) for kind, fields in stored["splits"]]
    return partition_of(stored, plan, splits)


def _arguments(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _field(name, value) for name, value in fields.items()}


def _field(name: str, value: Any) -> Any:
    if isinstance(value, dict):
        return QueueRange(**value)
    if isinstance(value, list):
        # A tuple, because splits must be hashable.
        items = (_field("", item) for item in value)
        return frozenset(items) if name == "topics" else tuple(items)
    return value


def planned_rows(pieces: Iterable[SourcePartition]) -> Tally | None:
    """Count the rows of each queue that a plan covers, before filters, and its void entries.

    Returns:
        None for a store without queues: its rows are unknown before they are read.
    """
    ranges: set[tuple[str, QueueRange]] = set()
    for piece in pieces:
        for split in piece.splits:
            if isinstance(split, ScanSplit):
                return None
            # Several log splits can share a range; queue splits have distinct ranges.
            found = (split.range,) if isinstance(split, QueueSplit) else split.ranges
            ranges.update((str(piece.broker_name), each) for each in found)
    tally = Tally()
    for broker, each in ranges:
        tally[broker, each.topic, each.queue_id] += each.count
    return tally
