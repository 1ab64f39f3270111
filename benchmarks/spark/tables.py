"""The jobs into Delta and Iceberg tables, against Parquet, a DataFrame, and one writer alone."""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from benchmarks.means.child import in_child
from benchmarks.means.stores import Shape, Stores
from benchmarks.report.figures import Figure, ratio_cells, spread
from benchmarks.spark.backfill import run_backfill
from rmqstore_spark.layout.record.columns import COLUMNS
from rmqstore_spark.pipelines.backfill import JOB, backfill
from rmqstore_spark.pipelines.parquet.files import split_by_partition
from rmqstore_spark.pipelines.tables.table import PARTITIONED_BY, table_schema
from rmqstore_spark.reader import Store
from rmqstore_spark.reader.options import QueueRange, ReadOptions
from rmqstore_spark.reader.plan import plan, read_split

__all__ = ["backfill_here", "table_figures", "write_from_driver"]

_MESSAGES: Final = {100: 2_000_000, 1024: 500_000}
_ROUNDS: Final = 3
_LEAST: Final = 0.9  # of the Parquet job: the tasks are the same, and a commit follows
_OF_FRAME: Final = 3.0

_PARQUET: Final = ("out",)
_DELTA: Final = ("table", "--to", "delta")
_ICEBERG: Final = ("rmq.messages", "--to", "iceberg", "--warehouse", ".")
_TARGETS: Final = {"parquet": _PARQUET, "delta": _DELTA, "iceberg": _ICEBERG}

_SECTION: Final = "Jobs to Delta and Iceberg tables"


def table_figures(stores: Stores) -> Iterator[Figure]:
    """CPU of what tasks and driver do, without Spark; then whole jobs. All ways take turns."""
    for body, messages in _MESSAGES.items():
        yield from _processor_times(stores(Shape(body, 64, messages)), body, messages)
    body, messages = next(iter(_MESSAGES.items()))
    store = stores(Shape(body, 64, messages))
    yield from _backfills(store, body, messages)
    yield from _streams(store, body, messages)


def _processor_times(store: Path, body: int, messages: int) -> Iterator[Figure]:
    spent: dict[str, list[float]] = {name: [] for name in (*_TARGETS, "driver")}
    for _ in range(_ROUNDS):
        for name, seconds in spent.items():
            with tempfile.TemporaryDirectory(prefix="rmqstore-bench-") as folder:
                given: dict[str, Any] = {"store": str(store), "folder": folder}
                function = "write_from_driver"
                if name != "driver":
                    function, given["words"] = "backfill_here", _TARGETS[name]
                found = in_child(f"benchmarks.spark.tables:{function}", **given)
                seconds.append(found)
    against = (("parquet", "the Parquet job", _LEAST), ("driver", "one write_deltalake", None))
    for name in ("delta", "iceberg"):
        for other, what, aim in against:
            ratios = [theirs / own for own, theirs in zip(spent[name], spent[other], strict=True)]
            yield _figure(
                f"CPU of a row without Spark, --to {name}, {body} B",
                f"{statistics.median(spent[name]) / messages * 1e6:.2f} us",
                what,
                f"{statistics.median(spent[other]) / messages * 1e6:.2f} us",
                ratios,
                aim,
            )


def _backfills(store: Path, body: int, messages: int) -> Iterator[Figure]:
    ways = {**_TARGETS, "frame": ("out", "--through-dataframe")}
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(_ROUNDS):
        for name, words in ways.items():
            rates[name].append(run_backfill(store, messages, words))
    for name in ("delta", "iceberg"):
        yield _rates(f"backfill --to {name}, {body} B", rates, name, "parquet", _LEAST)
        yield _rates(f"backfill --to {name}, {body} B", rates, name, "frame", _OF_FRAME)


def _streams(store: Path, body: int, messages: int) -> Iterator[Figure]:
    rates: dict[str, list[float]] = {name: [] for name in _TARGETS}
    for _ in range(_ROUNDS):
        for name, words in _TARGETS.items():
            rates[name].append(_run_stream(store, messages, words))
    for name in ("delta", "iceberg"):
        yield _rates(f"stream --to {name}, {body} B, one micro-batch", rates, name, "parquet", None)


def _rates(
    what: str, rates: Mapping[str, Sequence[float]], name: str, other: str, aim: float | None
) -> Figure:
    names = {"parquet": "the same to Parquet", "frame": "--through-dataframe, Parquet"}
    own, theirs = (f"{statistics.median(rates[way]) / 1e3:,.0f} k/s" for way in (name, other))
    ratios = [mine / yours for mine, yours in zip(rates[name], rates[other], strict=True)]
    return _figure(what, own, names[other], theirs, ratios, aim)


def _figure(
    name: str, own: str, what: str, other: str, ratios: Sequence[float], aim: float | None
) -> Figure:
    cells = ratio_cells(statistics.median(ratios), aim)
    note = f"{spread(ratios)} in {_ROUNDS} rounds, against {what}"
    return Figure(_SECTION, name, own, what, other, *cells, note=note)


def _run_stream(store: Path, messages: int, target: Sequence[str]) -> float:
    with tempfile.TemporaryDirectory(prefix="rmqstore-bench-") as folder:
        command = [sys.executable, "-m", "rmqstore_spark.pipelines.stream_to_parquet", str(store)]
        done = subprocess.run(
            [*command, *target, "--checkpoint", "checkpoint"],
            cwd=folder, stdout=subprocess.PIPE, text=True, check=True,
        )  # fmt: skip
    found = re.fullmatch(r"batch 0: ([\d,]+) rows, ([\d,]+) rows/s\n", done.stdout)
    if found is None or int(found[1].replace(",", "")) != messages:
        raise AssertionError(f"the job did not copy {messages} messages: {done.stdout}")
    return float(found[2].replace(",", ""))


def backfill_here(store: str, folder: str, words: Sequence[str]) -> float:
    """CPU seconds of the job in this process, without Spark."""
    os.chdir(folder)
    arguments = JOB.parse([store, *words])
    began = time.process_time()
    with redirect_stdout(sys.stderr):
        backfill(arguments, lambda work, task: [task(item) for item in work])
    return time.process_time() - began


def write_from_driver(store: str, folder: str) -> float:
    """CPU seconds in which `deltalake` reads all rows from one reader, and writes the table."""
    from deltalake import write_deltalake

    columns = tuple(name for name in COLUMNS if name != "topic")
    schema = table_schema(columns, body_as_text=False)

    def batches(opened: Store) -> Iterator[pa.RecordBatch]:
        queues = opened.queues()
        ranges = [QueueRange(q.topic, q.queue_id, q.min_offset, q.max_offset) for q in queues]
        for split in plan(opened, ranges, by="commitlog"):
            for batch in read_split(opened, split, ReadOptions()):
                for partition, rows in split_by_partition(batch):
                    arrays = [rows.column(name) for name in (*columns, "topic")]
                    yield pa.RecordBatch.from_arrays(
                        [*arrays, partition.dates(rows.num_rows)], schema=schema
                    )

    began = time.process_time()
    with Store.open(store) as opened:
        reader = pa.RecordBatchReader.from_batches(schema, batches(opened))
        write_deltalake(f"{folder}/table", reader, partition_by=list(PARTITIONED_BY))
    return time.process_time() - began
