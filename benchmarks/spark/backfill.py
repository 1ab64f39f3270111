"""`jobs/backfill.py`: straight to Parquet, against a DataFrame, and against pyarrow alone.

A run begins with the start of Python's processes, which a job of Spark that does nothing has too. A
run over few messages shows what that takes, and the rest of a long run is its steady state.
"""

from __future__ import annotations

import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.means.child import in_child
from benchmarks.means.stores import Shape, Stores
from benchmarks.report.figures import Figure
from rmqstore_spark.layout.record.columns import COLUMNS
from rmqstore_spark.pipelines.parquet.files import FileFormat, PartitionedWriter
from rmqstore_spark.pipelines.running import session
from rmqstore_spark.reader import Store
from rmqstore_spark.reader.options import QueueRange, ReadOptions, Split
from rmqstore_spark.reader.plan import plan, read_split

__all__ = ["backfill_figures", "copy_part", "run_backfill", "run_bare", "write_ready_made"]

_MESSAGES: Final = {100: 4_000_000, 1024: 1_000_000}
_FEW: Final = 6_400
_ROUNDS: Final = 3
_TASKS: Final = 2  # of the job at the same time, and processes of pyarrow alone
_OF_PYARROW: Final = 0.8
_START: Final = 1.5  # seconds: half of what a run over few messages took


def backfill_figures(stores: Stores) -> Iterator[Figure]:
    """Rows a second by the job's own account, which begins when Spark has started."""
    few = stores(Shape(100, 64, _FEW))
    starts: dict[str, list[float]] = {"few": [], "bare": []}
    for _ in range(_ROUNDS):
        starts["few"].append(_FEW / run_backfill(few, _FEW, ["out"]))
        starts["bare"].append(in_child("benchmarks.spark.backfill:run_bare"))
    start, bare = (statistics.median(found) for found in starts.values())
    yield Figure(
        "jobs/backfill.py, local[2]",
        f"a whole run over {_FEW:,} messages, 64 queues",
        f"{start:.1f} s",
        "a job that does nothing",
        f"{bare:.1f} s",
        f"{start / bare:.1f}",
        f"at most {_START} s",
        "yes" if start <= _START else "no",
    )
    for body, messages in _MESSAGES.items():
        store = stores(Shape(body, 64, messages))
        rates: dict[str, list[float]] = {
            "straight": [], "alone": [], "without": [], "through": []
        }  # fmt: skip
        for _ in range(_ROUNDS):
            rates["straight"].append(run_backfill(store, messages, ["out"]))
            rates["alone"].append(_run_alone(store, messages))
            rates["without"].append(_run_without_spark(store, messages))
            rates["through"].append(run_backfill(store, messages, ["out", "--through-dataframe"]))
        straight, alone, without, through = (statistics.median(found) for found in rates.values())
        ratio = straight / alone
        yield Figure(
            "jobs/backfill.py, local[2]",
            f"straight to Parquet, {body} B, 64 queues",
            f"{straight / 1e3:,.0f} k/s",
            "pyarrow alone, ready-made batches",
            f"{alone / 1e3:,.0f} k/s",
            f"{ratio:.2f}",
        )
        steady = messages / (messages / straight - start)
        ratio = steady / alone
        yield Figure(
            "jobs/backfill.py, local[2]",
            f"straight to Parquet without the start, {body} B, 64 queues",
            f"{steady / 1e3:,.0f} k/s",
            "pyarrow alone, ready-made batches",
            f"{alone / 1e3:,.0f} k/s",
            f"{ratio:.2f}",
            f"{_OF_PYARROW}",
            "yes" if ratio >= _OF_PYARROW else "no",
        )
        yield Figure(
            "jobs/backfill.py, local[2]",
            f"read and written by two processes without Spark, {body} B, 64 queues",
            f"{without / 1e3:,.0f} k/s",
            "pyarrow alone, ready-made batches",
            f"{alone / 1e3:,.0f} k/s",
            f"{without / alone:.2f}",
        )
        ratio = straight / through
        yield Figure(
            "jobs/backfill.py, local[2]",
            f"straight to Parquet, {body} B, 64 queues",
            f"{straight / 1e3:,.0f} k/s",
            "--through-dataframe",
            f"{through / 1e3:,.0f} k/s",
            f"{ratio:.1f}",
            "3",
            "yes" if ratio >= 3 else "no",
        )


def _run_alone(store: Path, messages: int) -> float:
    """Rows a second of two processes, each of which writes half as many rows."""
    rows = messages // _TASKS

    def arguments(number: int, folder: str) -> dict[str, Any]:
        return {"store": str(store), "path": f"{folder}/{number}.parquet", "rows": rows}

    return rows * _TASKS / _in_two("benchmarks.spark.backfill:write_ready_made", arguments)


def _run_without_spark(store: Path, messages: int) -> float:
    """Rows a second of two processes, each of which reads and writes half of the store."""

    def arguments(number: int, folder: str) -> dict[str, Any]:
        return {"store": str(store), "folder": f"{folder}/{number}", "number": number}

    return messages / _in_two("benchmarks.spark.backfill:copy_part", arguments)


def _in_two(function: str, arguments: Callable[[int, str], dict[str, Any]]) -> float:
    """Seconds of the slower of two processes, by their own account.

    Args:
        arguments: those of a process, by its number, and a folder that is removed.
    """
    with tempfile.TemporaryDirectory(prefix="rmqstore-bench-") as folder:

        def run(number: int) -> float:
            return float(in_child(function, **arguments(number, folder)))

        with ThreadPoolExecutor(_TASKS) as pool:
            return max(pool.map(run, range(_TASKS)))


def copy_part(store: str, folder: str, number: int) -> float:
    """Seconds in which one of two processes copies its splits as a task of the job does."""
    columns = tuple(name for name in COLUMNS if name != "topic")
    with Store.open(store) as opened:
        splits = _splits(opened)
        began = time.perf_counter()
        local = fsspec.filesystem("file")
        with PartitionedWriter(local, folder, "part", columns, FileFormat()) as writer:
            for split in splits[number::_TASKS]:
                for batch in read_split(opened, split, ReadOptions()):
                    writer.write(batch)
        return time.perf_counter() - began


def _splits(opened: Store) -> list[Split]:
    queues = opened.queues()
    ranges = [QueueRange(q.topic, q.queue_id, q.min_offset, q.max_offset) for q in queues]
    return plan(opened, ranges, by="commitlog")


def write_ready_made(store: str, path: str, rows: int) -> float:
    """Seconds in which pyarrow writes batches of a store's rows, with the job's settings.

    The batches of the first row group are written over and over.
    """
    file_format = FileFormat()
    group: list[pa.RecordBatch] = []
    options = ReadOptions(columns=tuple(name for name in COLUMNS if name != "topic"))
    with Store.open(store) as opened:
        for split in _splits(opened):
            for batch in read_split(opened, split, options):
                group.append(batch)
                if sum(batch.nbytes for batch in group) >= file_format.row_group_bytes:
                    break
            else:
                continue
            break
    table = pa.Table.from_batches(group)
    began = time.perf_counter()
    with pq.ParquetWriter(path, table.schema, **file_format.settings(table.schema)) as writer:
        for first in range(0, rows, len(table)):
            writer.write_table(table.slice(0, rows - first), row_group_size=len(table))
    return time.perf_counter() - began


def run_bare() -> float:
    """Seconds of the first job of a session, with as many tasks as a small backfill has pieces."""
    with session("rmqstore bench") as spark:
        began = time.perf_counter()
        spark.sparkContext.parallelize([0], 1).map(str).collect()
        return time.perf_counter() - began


def run_backfill(store: Path, messages: int, arguments: Sequence[str]) -> float:
    """Rows a second of the job, by its own account.

    Args:
        messages: how many the store has.
        arguments: where to write, in a folder that the job runs in and that is removed.
    """
    command = [sys.executable, "-m", "rmqstore_spark.pipelines.backfill", str(store), *arguments]
    with tempfile.TemporaryDirectory(prefix="rmqstore-bench-") as folder:
        done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, text=True, check=True)
    summary = re.search(r"([\d,]+) rows.* ([\d.]+) s$", done.stdout.strip(), re.DOTALL)
    if summary is None or int(summary[1].replace(",", "")) != messages:
        raise AssertionError(f"the job did not copy {messages} messages: {done.stdout}")
    return messages / float(summary[2])
