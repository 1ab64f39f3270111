"""Shared by the demos: starts Spark, and shows code, commands and tables."""

from __future__ import annotations

import contextlib
import inspect
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[1]
WIDTH = 96
NOISE_OF_START = "Using incubator modules"
"""A warning that Spark's JVM prints when it starts."""

console = Console(highlight=False, width=WIDTH)


def start_spark(folder: str, expected: Sequence[str] = ()) -> SparkSession:
    """Start Spark on this machine, with the settings of this repository.

    Args:
        folder: a folder for its files.
        expected: texts; lines on stderr that contain one of them are dropped.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_CONF_DIR", str(ROOT / "conf"))
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")

    from pyspark.sql import SparkSession

    with console.status("Starting Spark ..."), without_lines((NOISE_OF_START, *expected)):
        return (
            SparkSession.builder.master("local[2]")
            .appName("rmqstore-demo")
            .config("spark.ui.enabled", "false")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.warehouse.dir", f"{folder}/warehouse")
            .getOrCreate()
        )


@contextlib.contextmanager
def without_lines(parts: Sequence[str]) -> Iterator[None]:
    """Drop lines with one of these parts from the stderr of a JVM that is started here."""
    left_out = [part.encode() for part in parts]
    own = os.dup(2)
    reading, writing = os.pipe()
    os.dup2(writing, 2)  # the JVM inherits it
    os.close(writing)

    def hand_on() -> None:
        with open(reading, "rb") as lines:
            for line in lines:
                if not any(part in line for part in left_out):
                    os.write(own, line)

    threading.Thread(target=hand_on, daemon=True).start()
    try:
        yield
    finally:
        os.dup2(own, 2)


def silence(spark: SparkSession) -> None:
    """Turn off Spark's log, because queries of the demo fail on purpose; other errors are raised.

    `setLogLevel` does not change the loggers that conf/log4j2.properties names.
    """
    log4j = spark.sparkContext._jvm.org.apache.logging.log4j  # type: ignore[union-attr]
    log4j.core.config.Configurator.setAllLevels("", log4j.Level.OFF)


def show_command(title: str, name: str, store: str) -> None:
    """Run a command of `rmqstore` and show what it prints."""
    heading(title)
    console.print(f"$ rmqstore {name} {store}\n", style="cyan")
    sys.stdout.flush()
    command = [sys.executable, "-m", "rmqstore_spark.cli", name, store]
    subprocess.run(command, check=True, env={**os.environ, "COLUMNS": str(WIDTH)})


def show_next(places: Iterable[tuple[str, str]]) -> None:
    """Show the next steps: a purpose and a place for each."""
    heading("Where to go next")
    table = Table.grid(padding=(0, 3))
    for what, where in places:
        table.add_row(what, where)
    console.print(table)


def heading(title: str) -> None:
    """Print a heading."""
    console.print()
    console.rule(title, align="left", style="dim")
    console.print()


def show_code(function: Callable[..., object], result: str = "") -> None:
    """Show the body of a function that is about to run.

    Args:
        result: the name to show for its result, if it returns one.
    """
    lines = inspect.getsource(function).partition('."""\n')[2]
    code = textwrap.dedent(lines).replace("return ", f"{result} = ")
    console.print(code, style="cyan", markup=False)


def show_rows(columns: list[str], rows: list[list[object]]) -> None:
    """Show rows as a table, with numbers aligned to the right."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, name in enumerate(columns):
        words = any(isinstance(row[number], str) for row in rows)
        table.add_column(name, justify="left" if words else "right")
    for row in rows:
        table.add_row(*map(shown, row))
    console.print(table)


def shown(value: object) -> str:
    """Return a value as the tables show it."""
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, (int, Decimal)) else str(value)
