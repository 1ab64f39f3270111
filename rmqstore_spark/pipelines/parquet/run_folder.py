"""The bookkeeping of a backfill: its plan, the finished attempts at its pieces, and its decision.

    OWN/plan.json              the arguments and the pieces of work; written first
    OWN/attempts/7-UUID.json   an attempt at piece 7 is finished: its files, with their sizes
    OWN/commit.json            the committed attempts, one for each piece
    DATA/7-UUID/...            the files of an attempt

Each JSON file appears whole or not at all. A task may run twice: by a retry, by speculation, or by
a driver that was believed dead. It then makes a second attempt, which no commit names.
"""

from __future__ import annotations

import contextlib
import json
import os
import uuid
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from fsspec.implementations.local import LocalFileSystem

from rmqstore_spark.pipelines.parquet.files import WrittenFile
from rmqstore_spark.pipelines.parquet.tally import Tally


@dataclass(frozen=True)
class Attempt:
    """A finished attempt at a piece of work.

    piece: its number in the plan.
    folder: name of the attempt's folder.
    files: the files that it wrote.
    tally: rows by queue.
    """

    piece: int
    folder: str
    files: tuple[WrittenFile, ...]
    tally: Tally

    def to_json(self) -> dict[str, Any]:
        """Return the stored form."""
        return {
            "piece": self.piece,
            "folder": self.folder,
            "files": [asdict(file) for file in self.files],
            "queues": self.tally.to_json(),
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Attempt:
        """Create from the stored form."""
        return cls(
            stored["piece"],
            stored["folder"],
            tuple(WrittenFile(**file) for file in stored["files"]),
            Tally.from_json(stored["queues"]),
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
