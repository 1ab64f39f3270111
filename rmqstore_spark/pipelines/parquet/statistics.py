"""What a written file says of itself: its rows, and for a table the bounds of its columns."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from rmqstore_spark.errors import RmqStoreError
from rmqstore_spark.pipelines.parquet.files import WrittenFile

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
    for group in range(metadata.num_row_groups):
        found = metadata.row_group(group).column(index).statistics
        if found is None or not found.has_min_max:
            return None
        low.append(found.min)
        high.append(found.max)
    return (_text(min(low)), _text(max(high))) if low else None


def _text(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return value
