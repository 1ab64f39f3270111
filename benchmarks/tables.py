"""The jobs into Delta and Iceberg tables, against Parquet, a DataFrame, and one writer alone."""

from __future__ import annotations

import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa

from benchmarks.backfill import run_backfill
from benchmarks.child import in_child
from benchmarks.figures import Figure, spread
from benchmarks.stores import Shape, Stores
from rmqstore_spark.layout.record.columns import COLUMNS
from rmqstore_spark.pipelines.parquet.partitions import split_by_partition
from rmqstore_spark.pipelines.tables.schema import PARTITIONED_BY, table_schema
from rmqstore_spark.reader.options import ReadOptions
from rmqstore_spark.reader.plan import plan_by_commitlog
from rmqstore_spark.reader.reading import read_split
from rmqstore_spark.reader.rows.splits import QueueRange
from rmqstore_spark.reader.store import Store

__all__ = ["table_figures", "write_from_driver"]

_MESSAGES: Final = {100: 2_000_000, 1024: 500_000}
_ROUNDS: Final = 3
_LEAST: Final = 0.9  # of the Parquet job: the tasks are the same, and a commit follows

_DELTA: Final = ("table", "--to", "delta")
_ICEBERG: Final = ("rmq.messages", "--to", "iceberg", "--warehouse", ".")


def table_figures(stores: Stores) -> Iterator[Figure]:
    """Rows a second by the jobs' own account; all ways take turns."""
    for body, messages in _MESSAGES.items():
        store = stores(Shape(body, 64, messages))
        yield from _backfills(store, body, messages)
        yield from _streams(store, body, messages)


def _backfills(store: Path, body: int, messages: int) -> Iterator[Figure]:
    rates: dict[str, list[float]] = {
        name: [] for name in ("parquet", "delta", "iceberg", "frame", "driver")
    }
    for _ in range(_ROUNDS):
        rates["parquet"].append(run_backfill(store, messages, ["out"]))
        rates["delta"].append(run_backfill(store, messages, _DELTA))
        rates["iceberg"].append(run_backfill(store, messages, _ICEBERG))
        rates["frame"].append(run_backfill(store, messages, ["out", "--through-dataframe"]))
        with tempfile.TemporaryDirectory(prefix="rmqstore-bench-") as folder:
            seconds = in_child(
                "benchmarks.tables:write_from_driver", store=str(store), table=f"{folder}/table"
            )
        rates["driver"].append(messages / float(seconds))
    against = {
        "parquet": ("the Parquet job", _LEAST),
        "frame": ("--through-dataframe, Parquet", 3.0),
        "driver": ("write_deltalake in one process", None),
    }
    for name in ("delta", "iceberg"):
        for other, (what, aim) in against.items():
            if (name, other) != ("iceberg", "driver"):
                yield _figure(
                    f"--to {name}, {body} B, 64 queues", rates[name], what, rates[other], aim
                )


def _streams(store: Path, body: int, messages: int) -> Iterator[Figure]:
    rates: dict[str, list[float]] = {"parquet": [], "delta": [], "iceberg": []}
    for _ in range(_ROUNDS):
        for name, target in (("parquet", ["out"]), ("delta", _DELTA), ("iceberg", _ICEBERG)):
            rates[name].append(_run_stream(store, messages, target))
    for name in ("delta", "iceberg"):
        yield _figure(
            f"stream --to {name}, {body} B, one micro-batch", rates[name],
            "the same to Parquet, by Spark's sink", rates["parquet"], None,
        )  # fmt: skip


def _figure(
    name: str, own: Sequence[float], what: str, other: Sequence[float], aim: float | None
) -> Figure:
    ratios = [mine / theirs for mine, theirs in zip(own, other, strict=True)]
    ratio = statistics.median(ratios)
    return Figure(
        "jobs/backfill.py and stream_to_parquet.py to tables, local[2]",
        name,
        f"{statistics.median(own) / 1e3:,.0f} k/s",
        what,
        f"{statistics.median(other) / 1e3:,.0f} k/s",
        f"{ratio:.2f}",
        "" if aim is None else f"{aim}",
        "" if aim is None else ("yes" if ratio >= aim else "no"),
        note=f"{spread(ratios)} in {_ROUNDS} rounds, against {what}",
    )


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


def write_from_driver(store: str, table: str) -> float:
    """Seconds in which `deltalake` reads all rows of a store from one reader, and writes them."""
    from deltalake import write_deltalake

    columns = tuple(name for name in COLUMNS if name != "topic")
    schema = table_schema(columns, body_as_text=False)

    def batches(opened: Store) -> Iterator[pa.RecordBatch]:
        queues = opened.queues()
        ranges = [QueueRange(q.topic, q.queue_id, q.min_offset, q.max_offset) for q in queues]
        for split in plan_by_commitlog(opened, ranges):
            for batch in read_split(opened, split, ReadOptions()):
                for partition, rows in split_by_partition(batch):
                    arrays = [rows.column(name) for name in (*columns, "topic")]
                    yield pa.RecordBatch.from_arrays(
                        [*arrays, partition.dates(rows.num_rows)], schema=schema
                    )

    began = time.perf_counter()
    with Store.open(store) as opened:
        reader = pa.RecordBatchReader.from_batches(schema, batches(opened))
        write_deltalake(table, reader, partition_by=list(PARTITIONED_BY))
    return time.perf_counter() - began
