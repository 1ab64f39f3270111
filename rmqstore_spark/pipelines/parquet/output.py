"""The output folder of a backfill: the plan, the finished work, and the commit.

    OUTPUT/_backfill/plan.json              the arguments and the pieces of work; written first
    OUTPUT/_backfill/attempts/7-UUID/...    the files of an attempt at piece 7
    OUTPUT/_backfill/attempts/7-UUID.json   the attempt is finished: its files, with their sizes
    OUTPUT/_backfill/commit.json            the committed attempts, one for each piece
    OUTPUT/topic=NAME/date=YYYY-MM-DD/...   the files, moved here once commit.json exists
    OUTPUT/_SUCCESS                         all files have been moved

Each JSON file appears whole or not at all. A task may run twice: by a retry, by speculation, or by
a driver that was believed dead. It then makes a second attempt, which no commit names. A run that
finds a commit.json carries it out; the moves can be repeated. So the next run can continue a run
that was stopped anywhere, and no row is written twice. Spark ignores folders whose name begins with
an underscore.

A file system must be able to rename, or to copy and delete. On a local file system, commit.json is
created exclusively. On others, two concurrent runs could both create it: run only one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from fsspec.core import url_to_fs

from rmqstore_spark.errors import OptionError, RmqStoreError
from rmqstore_spark.pipelines.parquet.files import WrittenFile
from rmqstore_spark.pipelines.parquet.run_folder import Attempt, RunFolder

_OWN: Final = "_backfill"
_MOVERS: Final = 16


class Output(RunFolder):
    """An output folder, on any file system of fsspec. It can be pickled.

    Args:
        url: path or URL of the folder; it does not have to exist.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        fs, root = url_to_fs(url)
        self.root = root.rstrip("/")
        super().__init__(fs, f"{self.root}/{_OWN}", f"{self.root}/{_OWN}/attempts")

    @property
    def folder(self) -> RunFolder:
        """The folders that tasks use."""
        return self

    def read_plan(self) -> dict[str, Any] | None:
        """Return the plan that a run has left here, or None in a new folder.

        Raises:
            OptionError: the folder holds something else.
        """
        plan = super().read_plan()
        # A run that ended early can have left its own folder without a plan.
        if plan is None and set(self.names(self.root)) - {_OWN}:
            raise OptionError(
                f"{self.url} is not empty, and contains no backfill to continue. Use a new folder."
            )
        return plan

    def finished_attempts(self) -> list[Attempt]:
        """Return one finished attempt for each piece that has any, and remove the others."""
        kept = super().finished_attempts()
        self.remove_attempts(but=kept)
        return kept

    def commit(self, attempts: Collection[Attempt]) -> list[Attempt]:
        """Commit attempts, one for each piece.

        Returns:
            The committed attempts: those of another run, if it committed first.
        """
        self.decide(attempts, once=True)
        decided = self.committed()
        if decided is None:
            raise RmqStoreError(f"{self.own}/commit.json disappeared. Run the backfill again.")
        return decided

    def committed(self) -> list[Attempt] | None:
        """Return the committed attempts, or None before the commit."""
        return self.decided()

    def publish(self, attempts: Iterable[Attempt]) -> None:
        """Move the files of committed attempts to the folders from which they are read.

        Raises:
            RmqStoreError: a file exists in neither place, or has a different size.
        """
        moves = [(attempt.folder, file) for attempt in attempts for file in attempt.files]
        for folder in {file.path.rpartition("/")[0] for _, file in moves}:
            self.fs.makedirs(f"{self.root}/{folder}", exist_ok=True)
        with ThreadPoolExecutor(_MOVERS) as pool:
            for _ in pool.map(lambda move: self._publish(*move), moves):
                pass
        self._remove(self.data)
        self._write_json(f"{self.root}/_SUCCESS", None)

    def _publish(self, folder: str, file: WrittenFile) -> None:
        source, target = f"{self.attempt_path(folder)}/{file.path}", f"{self.root}/{file.path}"
        if self._size(target) == file.size:
            return
        if self._size(source) != file.size:
            raise RmqStoreError(
                f"{target} should have {file.size} bytes, but has {self._size(target)}, and "
                f"{source} has {self._size(source)}: files of the output were changed or removed. "
                "Start again with a new folder."
            )
        self.fs.mv(source, target)

    @property
    def is_published(self) -> bool:
        """Whether all files are in the folders from which they are read."""
        return self._exists(f"{self.root}/_SUCCESS")
