"""What the jobs ask of a table, and how files are appended to it once.

A commit carries the name of an application and a version that it counts up: a backfill is one
version of its own application, and a stream's versions are the numbers of its batches. The table
keeps the last version of each application, and its own check for conflicts keeps two commits of the
same version from both succeeding.
"""

from __future__ import annotations

import contextlib
import random
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import pyarrow as pa

from rmqstore_spark.errors import OptionError, RmqStoreError
from rmqstore_spark.layout.record.columns import COLUMNS
from rmqstore_spark.pipelines.parquet.files import Partition

_TRIES: Final = 20
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.1, 10.0  # seconds

# deltalake lists causes in colours and lines of their own.
_DECORATION: Final = re.compile(r"\x1b\[[0-9;]*m|\u21b3")


class ConflictError(Exception):
    """Another commit came first, and this one left nothing behind."""


@dataclass(frozen=True)
class DataFile:
    """A Parquet file to append.

    Args:
        path: path below the table's folder, as it is on the file system.
        rows, size: rows and bytes.
        partition: the topic and the day of all its rows.
        statistics: bounds of its columns, as Delta stores them.
    """

    path: str
    rows: int
    size: int
    partition: Partition
    statistics: str | None


@contextlib.contextmanager
def reported(failure: str) -> Iterator[None]:
    """Report the errors of a package as one of ours.

    Args:
        failure: what is not possible, as a sentence without its end.
    """
    try:
        yield
    except (RmqStoreError, ConflictError):
        raise
    except Exception as error:
        words = _DECORATION.sub(" ", str(error)).split()
        raise RmqStoreError(f"{failure}: {type(error).__name__}: {' '.join(words)}") from error


class LakeTable(Protocol):
    """A table, on any file system that its package supports."""

    name: str
    """For messages."""
    location: str
    """URL or path of the table's folder, for fsspec."""

    @property
    def file_schema(self) -> pa.Schema:
        """The schema of its files."""

    def refresh(self) -> None:
        """Read the table's latest state.

        Raises:
            OptionError: the table does not fit the job anymore.
        """

    def version_of(self, application: str) -> int | None:
        """Return the last version that an application committed; None before its first."""

    def append(self, files: Sequence[DataFile], application: str, version: int) -> None:
        """Append files in one commit, if nobody else has committed since `refresh`.

        A commit of others that cannot conflict may come in between.

        Raises:
            ConflictError: somebody has.
        """


def append_once(
    table: LakeTable, files: Sequence[DataFile], application: str, version: int
) -> bool:
    """Append files, unless this version of the application, or a later one, is in the table.

    Returns:
        Whether this call appended them.

    Raises:
        RmqStoreError: the table could not be written. It has the files or not; the next call with
            the same application and version finds out.
    """
    pause = _SHORTEST_PAUSE
    for _ in range(_TRIES):
        table.refresh()
        if _has(table, application, version):
            return False
        try:
            with reported(f"The table {table.name} could not be written"):
                table.append(files, application, version)
        except ConflictError:
            time.sleep(random.uniform(0, pause))  # noqa: S311 - not a secret
            pause = min(2 * pause, _LONGEST_PAUSE)
            continue
        except RmqStoreError:
            # The commit may have succeeded, and its answer have been lost.
            if _is_there_now(table, application, version):
                return False
            raise
        return True
    raise RmqStoreError(
        f"The table {table.name} was changed by others each of {_TRIES} times that this job tried "
        "to append to it. Repeat the command to continue."
    )


def _has(table: LakeTable, application: str, version: int) -> bool:
    found = table.version_of(application)
    return found is not None and found >= version


def _is_there_now(table: LakeTable, application: str, version: int) -> bool:
    with contextlib.suppress(RmqStoreError):
        table.refresh()
        return _has(table, application, version)
    return False


PARTITIONED_BY: Final = ("topic", "date")
"""Names of the columns by which each table is partitioned."""


def table_schema(columns: tuple[str, ...], *, body_as_text: bool) -> pa.Schema:
    """Return the schema of a table.

    Args:
        columns: names of the columns to write, without topic.
        body_as_text: whether `body` is written as a string.
    """
    types = {**COLUMNS, "body": pa.string()} if body_as_text else COLUMNS
    fields = [pa.field(name, types[name]) for name in columns]
    return pa.schema([*fields, pa.field("topic", pa.string()), pa.field("date", pa.date32())])


def check_columns(table: str, found: Mapping[str, str], wanted: Mapping[str, str]) -> None:
    """Check that a table has the columns that a job writes.

    Args:
        table: the table's name, for the error.
        found, wanted: types by name of column, as text.

    Raises:
        OptionError: a column is missing, or there is another one, or its type differs.
    """
    wrong = [
        f"{name} is {found.get(name, 'missing')} there, and {wanted.get(name, 'missing')} here"
        for name in [*wanted, *sorted(found.keys() - wanted.keys())]
        if found.get(name) != wanted.get(name)
    ]
    if wrong:
        raise OptionError(
            f"The table {table} has other columns: {'; '.join(wrong)}. Set --schema to the "
            "table's columns, or use another table."
        )


def check_partitions(table: str, found: tuple[str, ...]) -> None:
    """Check how a table is partitioned.

    Args:
        table: the table's name, for the error.
        found: how the table is partitioned, in its order.

    Raises:
        OptionError: not by topic and date.
    """
    if found != PARTITIONED_BY:
        there = f"by {', '.join(found)}" if found else "not"
        raise OptionError(
            f"The table {table} is partitioned {there}, but must be by topic, date. Use another "
            "table."
        )
