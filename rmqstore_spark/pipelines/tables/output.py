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
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from fsspec.core import url_to_fs

from rmqstore_spark.errors import OptionError, RmqStoreError
from rmqstore_spark.pipelines.parquet.files import WrittenFile
from rmqstore_spark.pipelines.parquet.partitions import Partition
from rmqstore_spark.pipelines.parquet.run_folder import Attempt, RunFolder
from rmqstore_spark.pipelines.tables.overlap import describe_overlap, same_place
from rmqstore_spark.pipelines.tables.table import DataFile, LakeTable, append_once

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
