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

import contextlib
import json
import os
import uuid
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from rmqstore_spark.errors import OptionError, RmqStoreError
from rmqstore_spark.layout.spans import int_array, numbers_of
from rmqstore_spark.pipelines.parquet.files import WrittenFile


@dataclass(frozen=True)
class Attempt:
    """A finished attempt at a piece of work.

    Attributes:
        piece: its number in the plan.
        folder: name of the attempt's folder.
        files: the files that it wrote.
        tally: rows by queue.
        void: void entries, which were planned as rows, by queue.
    """

    piece: int
    folder: str
    files: tuple[WrittenFile, ...]
    tally: Tally
    void: Tally

    def to_json(self) -> dict[str, Any]:
        """Return the stored form."""
        return {
            "piece": self.piece,
            "folder": self.folder,
            "files": [asdict(file) for file in self.files],
            "queues": self.tally.to_json(),
            "void": self.void.to_json(),
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Attempt:
        """Create from the stored form."""
        return cls(
            stored["piece"],
            stored["folder"],
            tuple(WrittenFile(**file) for file in stored["files"]),
            Tally.from_json(stored["queues"]),
            Tally.from_json(stored.get("void", ())),
        )


class RunFolder:
    """The folders of a backfill, on any file system of fsspec. It can be pickled.

    Args:
        fs: an fsspec file system.
        own: path of the folder for the bookkeeping; it does not have to exist.
        data: path of the folder for the attempts' files.
    """

    def __init__(self, fs: Any, own: str, data: str) -> None:
        self.fs = fs
        self.own = own
        self.data = data

    # ---- the plan ------------------------------------------------------------------------------

    def read_plan(self) -> dict[str, Any] | None:
        """Return the plan that a run has left here, or None before the first run."""
        plan: dict[str, Any] | None = self._read_json(f"{self.own}/plan.json")
        return plan

    def write_plan(self, plan: Mapping[str, Any]) -> dict[str, Any]:
        """Store the plan of a new backfill, and return it in its stored form."""
        self._write_json(f"{self.own}/plan.json", plan)
        stored: dict[str, Any] = self._read_json(f"{self.own}/plan.json")
        return stored

    # ---- attempts ------------------------------------------------------------------------------

    def new_attempt(self, piece: int) -> str:
        """Return the name of a new attempt's folder."""
        return f"{piece}-{uuid.uuid4().hex}"

    def attempt_path(self, folder: str) -> str:
        """Return the path of an attempt's folder on `fs`."""
        return f"{self.data}/{folder}"

    def finish_attempt(self, attempt: Attempt) -> None:
        """Record that all files of an attempt are written."""
        self._write_json(f"{self.own}/attempts/{attempt.folder}.json", attempt.to_json())

    def finished_attempts(self) -> list[Attempt]:
        """Return one finished attempt, whose files are there, for each piece that has any."""
        kept: dict[int, Attempt] = {}
        for name in sorted(self.names(f"{self.own}/attempts")):
            if not name.endswith(".json"):
                continue
            stored = self._read_json(f"{self.own}/attempts/{name}")
            attempt = stored and Attempt.from_json(stored)
            if attempt and attempt.piece not in kept and self.is_whole(attempt):
                kept[attempt.piece] = attempt
        return list(kept.values())

    def remove_attempts(self, but: Iterable[Attempt]) -> None:
        """Remove all attempts but some, with their files."""
        wanted = {attempt.folder for attempt in but}
        for folder in {self.data, f"{self.own}/attempts"}:
            for name in self.names(folder):
                if name.removesuffix(".json") not in wanted:
                    self._remove(f"{folder}/{name}")

    def is_whole(self, attempt: Attempt) -> bool:
        """Whether all files of an attempt have their sizes."""
        folder = self.attempt_path(attempt.folder)
        return all(self._size(f"{folder}/{file.path}") == file.size for file in attempt.files)

    # ---- the decision --------------------------------------------------------------------------

    def decide(self, attempts: Collection[Attempt], *, once: bool) -> None:
        """Store which attempts are committed.

        Args:
            attempts: one for each piece.
            once: keep a decision that is there.
        """
        ordered = sorted(attempts, key=lambda attempt: attempt.piece)
        self._write_json(
            f"{self.own}/commit.json", {"attempts": [a.to_json() for a in ordered]}, once=once
        )

    def decided(self) -> list[Attempt] | None:
        """Return the attempts of the decision, or None before it."""
        stored = self._read_json(f"{self.own}/commit.json")
        return stored and [Attempt.from_json(attempt) for attempt in stored["attempts"]]

    # ---- files ---------------------------------------------------------------------------------

    def _exists(self, path: str) -> bool:
        self.fs.invalidate_cache()
        return bool(self.fs.exists(path))

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder; none if it does not exist."""
        self.fs.invalidate_cache()
        try:
            found = self.fs.ls(folder, detail=False)
        except FileNotFoundError:
            return []
        return [name.rstrip("/").rpartition("/")[2] for name in found]

    def _size(self, path: str) -> int | None:
        try:
            return int(self.fs.size(path))
        except FileNotFoundError:
            return None

    def _remove(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.fs.rm(path, recursive=True)

    def _read_json(self, path: str) -> Any:
        try:
            return json.loads(self.fs.cat_file(path))
        except FileNotFoundError:
            return None

    def _write_json(self, path: str, value: object, *, once: bool = False) -> None:
        """Write a file whole, by way of another name.

        Args:
            once: keep an existing file unchanged.
        """
        self.fs.makedirs(path.rpartition("/")[0], exist_ok=True)
        draft = f"{path}.{uuid.uuid4().hex}"
        self.fs.pipe_file(draft, json.dumps(value).encode() if value is not None else b"")
        if not once:
            self.fs.mv(draft, path)
        elif isinstance(self.fs, LocalFileSystem):
            with contextlib.suppress(FileExistsError):
                os.link(draft, path)
            self._remove(draft)
        elif self._exists(path):
            self._remove(draft)
        else:
            self.fs.mv(draft, path)


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


QueueName: TypeAlias = tuple[str, str, int]
"""Broker, topic, queue id."""

_LISTED: Final = 10


class Tally(Counter[QueueName]):
    """Rows, or other things, by queue."""

    @classmethod
    def of(cls, tallies: Iterable[Tally]) -> Tally:
        """Add up several tallies."""
        whole = cls()
        for tally in tallies:
            whole.update(tally)
        return whole

    def add(self, batch: pa.RecordBatch) -> None:
        """Count the rows of a batch.

        Args:
            batch: has the columns brokerName, topic and queueId; brokerName is the same in all.
        """
        if not batch.num_rows:
            return
        broker = batch.column("brokerName")[0].as_py()
        topics = batch.column("topic").dictionary_encode()
        # A queue id has 31 bits.
        codes = numbers_of(topics.indices).astype(np.int64) << 32
        codes += numbers_of(batch.column("queueId"))
        names = topics.dictionary.to_pylist()
        for code, count in zip(*(part.to_pylist() for part in _counts(codes)), strict=True):
            self[broker, names[code >> 32], code & 0xFFFFFFFF] += count

    def to_json(self) -> list[tuple[str, str, int, int]]:
        """Convert to JSON, in a fixed order."""
        return [(*name, self[name]) for name in sorted(self)]

    @classmethod
    def from_json(cls, stored: Iterable[Sequence[object]]) -> Tally:
        """Create from JSON."""
        tally = cls()
        for broker, topic, queue_id, count in stored:
            tally[str(broker), str(topic), int(str(queue_id))] = int(str(count))
        return tally


def _counts(codes: npt.NDArray[np.int64]) -> tuple[pa.Array, pa.Array]:
    """Return the distinct codes, and how often each occurs. NumPy would sort all of them."""
    found = pc.value_counts(int_array(codes))
    return found.field("values"), found.field("counts")


def describe_difference(planned: Tally, written: Tally, *, less_is_fine: bool) -> str:
    """Describe the queues whose rows differ from the plan; empty if there are none.

    Args:
        less_is_fine: whether fewer rows than planned are accepted.
    """
    wrong = []
    for name in sorted(planned.keys() | written.keys()):
        wanted, count = planned[name], written[name]
        if count > wanted or (count < wanted and not less_is_fine):
            broker, topic, queue_id = name
            wrong.append(f"{topic}/{queue_id} of {broker}: {count:,} of {wanted:,} rows")
    more = f", and {len(wrong) - _LISTED:,} more queues" if len(wrong) > _LISTED else ""
    return ", ".join(wrong[:_LISTED]) + more
