"""Copy stores to Parquet, whole or in part: OUTPUT/topic=NAME/date=YYYY-MM-DD/*.parquet.

With --to delta or --to iceberg, to a table that is partitioned in the same way (`tables`).

    python -m jobs.backfill STORE OUTPUT
    spark-submit jobs/backfill.py STORE OUTPUT --subscribe orders --endingOffsets '{...}'

The date is that of storeTimestamp in UTC. Tasks write Parquet directly from the Arrow batches that
they decode; Spark only schedules them. If a run is killed or fails, only the pieces being written
are lost: repeat the command to continue. Files appear when everything is written, and every queue
has as many rows as were planned (see `parquet.output` and `tables.output`).
"""

from __future__ import annotations

import json
import os
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import pyarrow as pa
import typer

from rmqstore_spark.datasource.batch import RmqStoreReader
from rmqstore_spark.datasource.options.option import STREAM
from rmqstore_spark.datasource.options.values import parse_bytes, parse_paths
from rmqstore_spark.datasource.partitions import EVEN
from rmqstore_spark.datasource.schema import project
from rmqstore_spark.datasource.source import RmqStoreDataSource
from rmqstore_spark.errors import OptionError, RmqStoreError
from rmqstore_spark.files.systems.schemes import local_path
from rmqstore_spark.pipelines.arguments import Job, Schema, as_parser, columns_to_read
from rmqstore_spark.pipelines.parquet.files import CODECS, FileFormat
from rmqstore_spark.pipelines.parquet.output import Attempt, Output, Tally, describe_difference
from rmqstore_spark.pipelines.parquet.task import (
    BackfillTask,
    PieceItem,
    planned_rows,
    stored_piece,
)
from rmqstore_spark.pipelines.running import run_job, run_tasks, session
from rmqstore_spark.pipelines.tables.arguments import (
    PARQUET,
    TableArguments,
    create_table,
    find_table,
)
from rmqstore_spark.pipelines.tables.output import TableOutput
from rmqstore_spark.pipelines.tables.table import LakeTable, table_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType


_size = as_parser(parse_bytes)


@dataclass(frozen=True, kw_only=True)
class BackfillArguments(TableArguments):
    """The arguments of the job."""

    output: Annotated[
        str,
        typer.Argument(
            metavar="OUTPUT",
            help="new folder, or that of an interrupted run to continue; or a table, see --to",
        ),
    ]
    schema: Schema = None
    compression: Annotated[
        str | None,
        typer.Option("--compression", metavar="CODEC", help=", ".join(CODECS), show_default="zstd"),
    ] = None
    target_file_size: Annotated[
        int,
        typer.Option(
            "--target-file-size",
            metavar="SIZE",
            parser=_size,
            help="close a file when it reaches this size  [default: 512m]",
        ),
    ] = 512 << 20
    row_group_size: Annotated[
        int,
        typer.Option(
            "--row-group-size",
            metavar="SIZE",
            parser=_size,
            help="approximate uncompressed size of a row group  [default: 64m]",
        ),
    ] = 64 << 20
    through_dataframe: Annotated[
        str | None,
        typer.Option(
            "--through-dataframe",
            metavar="[FORMAT]",
            help="let Spark write, in any format that it supports (parquet, orc, json, ...); "
            "slower, and an interrupted run starts over",
        ),
    ] = None

    def identity(self) -> dict[str, Any]:
        """Return the arguments that must be the same for a run to continue another one."""
        options = self.source_options()
        if "path" in options:
            options["path"] = json.dumps([_absolute(path) for path in parse_paths(options["path"])])
        return {
            **options,
            "schema": self.schema,
            "compression": self.compression or "zstd",
            "target-file-size": self.target_file_size,
            "row-group-size": self.row_group_size,
        }

    def file_format(self) -> FileFormat:
        """Return the format of the files."""
        return FileFormat(self.compression or "zstd", self.row_group_size, self.target_file_size)

    def check(self) -> None:
        """Check the arguments that need neither a store nor Spark.

        Raises:
            OptionError: one is wrong, or two exclude each other.
        """
        if (self.compression or "zstd") not in CODECS and not self.through_dataframe:
            raise OptionError(f"--compression must be one of {', '.join(CODECS)}.")
        if self.through_dataframe and self.to != PARQUET:
            raise OptionError(
                f"--to {self.to} excludes --through-dataframe, which lets Spark write folders of "
                "files."
            )
        self.check_table()


def _absolute(path: str) -> str:
    local = local_path(path)
    return path if local is None else os.path.abspath(local)


JOB: Final = Job(
    "backfill",
    BackfillArguments,
    "Copy RocketMQ stores to Parquet, or to a Delta or Iceberg table, by topic and date.",
    without=STREAM,
    optional_value=("--through-dataframe", "parquet"),
)


Runner: TypeAlias = Callable[[Sequence[PieceItem], BackfillTask], Sequence[Mapping[str, Any]]]

NEEDED: Final = ("brokerName", "topic", "queueId", "storeTimestamp")
"""The columns from which partitions and totals are computed."""


def _new_plan(arguments: BackfillArguments, schema: StructType) -> dict[str, Any]:
    options = arguments.source_options()
    # Spark itself would only call these.
    reader = RmqStoreDataSource(options).reader(schema)
    assert isinstance(reader, RmqStoreReader)  # noqa: S101
    work = reader.planned(EVEN)
    rows = planned_rows(work)
    return {
        "version": 1,
        "arguments": arguments.identity(),
        "pieces": [stored_piece(piece) for piece in work],
        "rows": rows and rows.to_json(),
    }


def _check_same(plan: Mapping[str, Any], arguments: BackfillArguments) -> None:
    if plan["version"] != 1:
        raise OptionError(
            f"{arguments.output} was started by another version of this job. Use a new folder."
        )
    old, new = plan["arguments"], arguments.identity()
    different = [
        f"{name} was {old.get(name)!r} and is now {new.get(name)!r}"
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name)
    ]
    if different:
        raise OptionError(
            f"{arguments.output} contains a backfill with other arguments: {'; '.join(different)}. "
            "Repeat the old arguments to continue it, or use a new folder."
        )


def _find_output(arguments: BackfillArguments, columns: pa.Schema) -> Output | TableOutput | None:
    """Return the folder or the table to write to; None for a table that does not exist yet."""
    if arguments.to == PARQUET:
        return Output(arguments.output)
    table = find_table(arguments, columns)
    return None if table is None else _table_output(arguments, table)


def _table_output(arguments: BackfillArguments, table: LakeTable) -> TableOutput:
    options = arguments.file_options()
    return TableOutput(table, options, arguments.identity())


@dataclass(frozen=True)
class FoundTarget:
    """What a run finds before it begins.

    Attributes:
        schema: the columns to read.
        written: the columns to write.
        columns: the columns of a table.
        output: where to write; None for a table that does not exist yet.
        plan: what to do; None if a table has the rows, and the bookkeeping was removed since.
        is_new: whether no earlier run has begun with it.
    """

    schema: StructType
    written: tuple[str, ...]
    columns: pa.Schema
    output: Output | TableOutput | None
    plan: dict[str, Any] | None
    is_new: bool = False


def look(arguments: BackfillArguments) -> FoundTarget:
    """Look for the plan of an earlier run, or plan what to do. Changes nothing.

    Raises:
        OptionError: an argument is wrong, or differs from the run that began here.
        RmqStoreError: a store cannot be read.
    """
    arguments.check()
    schema, written = columns_to_read(arguments.schema, NEEDED)
    columns = table_schema(written, body_as_text=project(schema).body_as_text)
    output = _find_output(arguments, columns)
    if output is not None:
        plan = output.read_plan()
        if plan is not None:
            _check_same(plan, arguments)
        if plan is not None or output.is_published:
            return FoundTarget(schema, written, columns, output, plan)
    return FoundTarget(schema, written, columns, output, _new_plan(arguments, schema), is_new=True)


def _begin(
    output: Output | TableOutput, plan: Mapping[str, Any], arguments: BackfillArguments
) -> dict[str, Any]:
    """Store a plan, unless another run has stored one meanwhile; return the stored one."""
    stored = output.read_plan()
    if stored is None:
        return output.write_plan(plan)
    _check_same(stored, arguments)
    return stored


def backfill(
    arguments: BackfillArguments, run: Runner, found: Callable[[], FoundTarget] | None = None
) -> None:
    """Begin or continue a backfill.

    Args:
        run: calls the task for each item of work, anywhere, and returns the results.
        found: returns what `look` has found, if it was called before.

    Raises:
        OptionError, RmqStoreError: as `look` does, or rows are missing.
    """
    began = time.monotonic()
    begun = look(arguments) if found is None else found()
    output, plan = begun.output, begun.plan
    if plan is None:
        print("This backfill is already finished.")
        return
    if output is None:
        output = _table_output(arguments, create_table(arguments, begun.columns))
    if begun.is_new:
        plan = _begin(output, plan, arguments)
    attempts = output.committed()
    if attempts is None:
        task = BackfillTask(
            output.folder,
            arguments.source_options(),
            begun.schema,
            begun.written if isinstance(output, Output) else output.file_schema,
            arguments.file_format(),
            uuid.uuid4().hex,
        )
        attempts = _attempts(plan, output, task, run)
        _check_totals(plan, attempts)  # before any row can be seen
        attempts = output.commit(attempts)
    elif output.is_published:
        print("This backfill is already finished.")
    output.publish(attempts)
    _report(attempts, _check_totals(plan, attempts), time.monotonic() - began)
    if isinstance(output, Output):
        _warn_of_numbers(attempts)


def _attempts(
    plan: Mapping[str, Any], output: Output | TableOutput, task: BackfillTask, run: Runner
) -> list[Attempt]:
    """Return an attempt for each piece; run the pieces that no earlier run has finished."""
    attempts = output.finished_attempts()
    finished = {attempt.piece for attempt in attempts}
    work = [item for item in enumerate(plan["pieces"]) if item[0] not in finished]
    if finished:
        print(f"{len(finished)} of {len(plan['pieces'])} pieces are already finished.", flush=True)
    return [*attempts, *map(Attempt.from_json, run(work, task))]


def _check_totals(plan: Mapping[str, Any], attempts: list[Attempt]) -> str:
    """Compare the rows written to those planned, queue by queue. Void entries have no rows.

    Returns:
        The result of the comparison, in a few words.

    Raises:
        RmqStoreError: there are more rows than planned, or fewer and no option allows that.
    """
    written = Tally.of(attempt.tally for attempt in attempts)
    rows = sum(file.rows for attempt in attempts for file in attempt.files)
    if rows != written.total():
        raise RmqStoreError(f"{written.total():,} rows were read, but {rows:,} were written.")
    if plan["rows"] is None:
        return "everything in the log"
    planned = Tally.from_json(plan["rows"])
    planned.subtract(Tally.of(attempt.void for attempt in attempts))
    given = plan["arguments"]
    filtered = given.get("keys") is not None or given.get("tags", "*").strip() not in ("", "*")
    lenient = given.get("mode", "").upper() == "DROPMALFORMED" or (
        given.get("failOnDataLoss", "").lower() == "false"
    )
    wrong = describe_difference(planned, written, less_is_fine=filtered or lenient)
    if wrong:
        raise RmqStoreError(
            f"The written rows differ from the plan: {wrong}. Nothing was published. Check the "
            "store with `rmqstore verify`, and start again with a new folder."
        )
    missing = planned.total() - written.total()
    if filtered:
        return f"chosen from {planned.total():,}"
    return f"{missing:,} expired or damaged ones skipped" if missing else "as many as planned"


def _report(attempts: list[Attempt], totals: str, seconds: float) -> None:
    files = [file for attempt in attempts for file in attempt.files]
    rows = sum(file.rows for file in files)
    size = sum(file.size for file in files)
    folders = {file.path.rpartition("/")[0] for file in files}
    tally = Tally.of(attempt.tally for attempt in attempts)
    print(
        f"{rows:,} rows of {len(tally):,} queue(s), {totals}: {len(files):,} file(s) in "
        f"{len(folders):,} folder(s), {size / 1e6:,.1f} MB; {seconds:.1f} s"
    )


def _warn_of_numbers(attempts: list[Attempt]) -> None:
    """Warn if Spark would take the topics for numbers. A table says that they are text."""
    topics = {topic for _, topic, _ in Tally.of(attempt.tally for attempt in attempts)}
    if topics and all(map(_is_number, topics)):
        print(
            "All topics look like numbers, so Spark will read them as numbers (007 as 7) unless "
            "spark.sql.sources.partitionColumnTypeInference.enabled is false."
        )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def through_dataframe(spark: SparkSession, arguments: BackfillArguments, kind: str) -> None:
    """Copy with DataFrames: Spark reads rows, and writes them.

    Args:
        kind: the format to write.

    Raises:
        OptionError: Spark does not know the format, or the output exists.
        RmqStoreError: the number of rows that can be read back is not the number written.
    """
    from pyspark.sql import Observation
    from pyspark.sql import functions as sf

    began = time.monotonic()
    schema, written = columns_to_read(arguments.schema, ("topic", "storeTimestamp"))
    source = spark.read.format("rmqstore").schema(schema).options(**arguments.source_options())
    counted = Observation("backfill")
    rows = source.load().observe(counted, sf.count("*").alias("rows"))
    writer = rows.select(*written, "topic", sf.to_date("storeTimestamp").alias("date")).write
    if arguments.compression:
        writer = writer.option("compression", arguments.compression)
    with _spark_refusals(arguments, kind):
        writer.format(kind).partitionBy("topic", "date").save(arguments.output)
    count = counted.get["rows"]
    back = spark.read.format(kind).load(arguments.output).count()
    if back != count:
        raise RmqStoreError(
            f"{count:,} rows were written to {arguments.output}, but {back:,} can be read back."
        )
    print(f"{count:,} rows; {time.monotonic() - began:.1f} s")


@contextmanager
def _spark_refusals(arguments: BackfillArguments, kind: str) -> Iterator[None]:
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
    from pyspark.errors import AnalysisException

    try:
        yield
    except (AnalysisException, Py4JJavaError) as error:
        if "[DATA_SOURCE_NOT_FOUND]" in str(error):
            raise OptionError(
                f"--through-dataframe must be a format that this Spark can write, not {kind!r}."
            ) from None
        if "[PATH_ALREADY_EXISTS]" in str(error):
            raise OptionError(f"{arguments.output} exists already. Use a new folder.") from None
        raise


def main(command: list[str] | None = None) -> int:
    """Run the job; return the exit code."""
    arguments = JOB.parse(command)
    return run_job(lambda: _run(arguments), arguments.places())


def _run(arguments: BackfillArguments) -> None:
    arguments.check()
    name = "rmqstore backfill"
    if arguments.schema or arguments.through_dataframe:
        arguments.check_source(streaming=False)
    if arguments.through_dataframe:
        with session(name) as spark:
            through_dataframe(spark, arguments, arguments.through_dataframe)
        return
    with ThreadPoolExecutor(1) as pool:
        # While Spark starts, which takes some seconds. Only Spark itself can parse a schema.
        looking = None if arguments.schema else pool.submit(look, arguments)
        with session(name) as spark:
            run = partial(run_tasks, spark, f"backfill to {arguments.output}")
            backfill(arguments, run, looking.result if looking else None)


if __name__ == "__main__":
    sys.exit(main())
