"""What `make demo` shows: a store that a RocketMQ 4.9.8 broker wrote, read without a broker."""

from __future__ import annotations

import contextlib
import inspect
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

ROOT = Path(__file__).resolve().parents[1]
ARCHIVE = ROOT / "examples" / "data" / "live-store.tar.gz"
STORE = "broker-a/store"
WIDTH = 96

console = Console(highlight=False, width=WIDTH)


def messages_by_topic(spark: SparkSession, store: str) -> DataFrame:
    """The batch query of the demo."""
    spark.read.format("rmqstore").load(store).createOrReplaceTempView("messages")
    return spark.sql("""
        SELECT topic, tags, count(*) AS messages, round(avg(length(body))) AS avg_body,
               max(timestampdiff(MILLISECOND, bornTimestamp, storeTimestamp)) AS max_delay_ms
        FROM messages GROUP BY topic, tags ORDER BY messages DESC, topic, tags""")


def copy_as_stream(spark: SparkSession, store: str, output: str, checkpoint: str) -> StreamingQuery:
    """The streaming query of the demo."""
    return (
        spark.readStream.format("rmqstore")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 400)
        .load(store)
        .writeStream.format("parquet")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start(output)
    )


def main() -> None:
    """Show all that there is to see."""
    with tempfile.TemporaryDirectory(prefix="rmqstore-demo-") as folder:
        shutil.unpack_archive(ARCHIVE, Path(folder) / "broker-a")
        os.chdir(folder)  # so that paths are short to read
        try:
            show_command("Topics of the store, without Spark", "topics", STORE)
            spark = start_spark(folder)
            try:
                show_batch(spark)
                show_stream(spark)
            finally:
                spark.stop()
            show_command("How far consumer groups have come", "groups", STORE)
        finally:
            os.chdir(ROOT)
    show_next()


def start_spark(folder: str) -> SparkSession:
    """Start Spark on this machine, with the settings of this repository."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_CONF_DIR", str(ROOT / "conf"))
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")

    from pyspark.sql import SparkSession

    with console.status("Starting Spark ..."), without_noise_of_start():
        return (
            SparkSession.builder.master("local[2]")
            .appName("rmqstore-demo")
            .config("spark.ui.enabled", "false")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.warehouse.dir", f"{folder}/warehouse")
            .getOrCreate()
        )


@contextlib.contextmanager
def without_noise_of_start() -> Iterator[None]:
    """Leave out what every JVM of Spark says when it starts; all else on stderr goes on."""
    own = os.dup(2)
    reading, writing = os.pipe()
    os.dup2(writing, 2)  # the JVM inherits it
    os.close(writing)

    def hand_on() -> None:
        with open(reading, "rb") as lines:
            for line in lines:
                if b"Using incubator modules" not in line:
                    os.write(own, line)

    threading.Thread(target=hand_on, daemon=True).start()
    try:
        yield
    finally:
        os.dup2(own, 2)


def show_command(title: str, name: str, store: str) -> None:
    """Run a command of `rmqstore` and show what it prints."""
    heading(title)
    console.print(f"$ rmqstore {name} {store}\n", style="cyan")
    sys.stdout.flush()
    command = [sys.executable, "-m", "rmqstore_spark.cli", name, store]
    subprocess.run(command, check=True, env={**os.environ, "COLUMNS": str(WIDTH)})


def show_batch(spark: SparkSession) -> None:
    """Run the batch query."""
    heading("A batch query")
    show_code(messages_by_topic, "counts")
    rows = messages_by_topic(spark, STORE)
    with console.status("Running it ..."):
        found = rows.collect()
    show_rows(rows.columns, [list(row) for row in found])


def show_stream(spark: SparkSession) -> None:
    """Run the streaming query."""
    heading("A streaming query, over what is there (Trigger.AvailableNow)")
    show_code(copy_as_stream, "query")
    with console.status("Running it ..."):
        query = copy_as_stream(spark, STORE, "copy", "checkpoint")
        query.awaitTermination()
    show_rows(
        ["micro-batch", "messages", "milliseconds"],
        [
            [progress.batchId, progress.numInputRows, progress.batchDuration]
            for progress in query.recentProgress
            if progress.numInputRows
        ],
    )
    copied = spark.read.parquet("copy").count()
    console.print(f"\nThe copy holds {copied:,} messages. Run again, the stream would go on there.")


def show_next() -> None:
    """Say where to go from here."""
    heading("Where to go next")
    table = Table.grid(padding=(0, 3))
    for what, where in (
        ("Your own store", 'spark.read.format("rmqstore").load("/path/to/store")'),
        ("The command", ".venv/bin/rmqstore --help"),
        ("Batch, stream, lag, plots", "examples/quickstart.ipynb"),
        ("A store to Parquet", ".venv/bin/python -m jobs.backfill STORE OUTPUT"),
        ("All options", "docs/options.md"),
    ):
        table.add_row(what, where)
    console.print(table)


def heading(title: str) -> None:
    """Begin a part."""
    console.print()
    console.rule(title, align="left", style="dim")
    console.print()


def show_code(function: Callable[..., object], result: str) -> None:
    """Show the body of a function that is about to run.

    Args:
        result: what to call what it returns.
    """
    lines = inspect.getsource(function).partition('."""\n')[2]
    code = textwrap.dedent(lines).replace("return ", f"{result} = ")
    console.print(code, style="cyan", markup=False)


def show_rows(columns: list[str], rows: list[list[object]]) -> None:
    """Show rows as a table; numbers to the right."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, name in enumerate(columns):
        words = any(isinstance(row[number], str) for row in rows)
        table.add_column(name, justify="left" if words else "right")
    for row in rows:
        table.add_row(*("" if value is None else str(value) for value in row))
    console.print(table)


if __name__ == "__main__":
    main()
