"""Runs jobs in this process, and reads their output without Spark."""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from fsspec.implementations.local import LocalFileSystem

from rmqstore_spark.pipelines.backfill import JOB, backfill
from rmqstore_spark.pipelines.parquet.task import BackfillTask, PieceItem
from tests.support.stores.expected import queue_key

__all__ = [
    *("Killed", "data_files", "killed_after", "read_back", "run_backfill", "run_half", "run_here"),
    "run_only",
]

Row = dict[str, Any]


def run_here(work: Sequence[PieceItem], task: BackfillTask) -> list[dict[str, Any]]:
    """Do what Spark would: send the task to each piece of work."""
    sent: BackfillTask = pickle.loads(pickle.dumps(task))
    return [sent(item) for item in work]


def run_backfill(store: Path | str, output: Path | str, *options: str, run: Any = run_here) -> None:
    """Run the job with a command line, without Spark."""
    backfill(JOB.parse([str(store), str(output), *options]), run)


def data_files(output: Path) -> list[Path]:
    """Return the files that a reader of the output finds."""
    return sorted(
        path
        for path in output.rglob("*.parquet")
        if not any(part.startswith(("_", ".")) for part in path.relative_to(output).parts)
    )


def read_back(output: Path) -> list[Row]:
    """Return all rows by queue; topic and date come from the folders, as in Hive."""
    rows = []
    for path in data_files(output):
        topic, date = (part.partition("=")[2] for part in path.relative_to(output).parts[:2])
        for code in range(256):
            topic = topic.replace(f"%{code:02X}", chr(code)) if code != 0x25 else topic
        topic = topic.replace("%25", "%")
        for row in pq.ParquetFile(path).read().to_pylist():
            if "properties" in row:
                row["properties"] = dict(row["properties"])
            rows.append({"topic": topic, "date": date, **row})
    return sorted(rows, key=queue_key)


class Killed(BaseException):
    """The process has ended."""


def run_half(work: Sequence[PieceItem], task: BackfillTask) -> list[dict[str, Any]]:
    """Do the first half of the work, and end as a process that is killed."""
    run_here(work[: len(work) // 2], task)
    raise Killed


def run_only(numbers: Sequence[int]) -> Callable[..., list[dict[str, Any]]]:
    """Return what does the work, and checks which pieces it is."""

    def run(work: Sequence[PieceItem], task: BackfillTask) -> list[dict[str, Any]]:
        assert [number for number, _ in work] == list(numbers)
        return run_here(work, task)

    return run


@contextmanager
def killed_after(operations: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Block the file system after this many changes to it.

    Yields:
        One number: of changes that were tried.
    """
    tried, lock = [0], threading.Lock()

    def dying(function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            with lock:
                tried[0] += 1
                if tried[0] > operations:
                    raise Killed
            return function(*args, **kwargs)

        return wrapper

    with monkeypatch.context() as patch:
        for name in ("mv", "rm", "pipe_file", "makedirs", "_open"):
            patch.setattr(LocalFileSystem, name, dying(getattr(LocalFileSystem, name)))
        patch.setattr(os, "link", dying(os.link))
        yield tried
