"""Replay messages of stores, or of a backfill's Parquet, into stores.

    python -m jobs.replay STORE ENDPOINT --checkpoint FOLDER
    python -m jobs.replay FOLDER ENDPOINT --checkpoint FOLDER --parquet --map '*=r_*' --rate 5000

It replays the messages that exist when it starts, and ends. A run continues where the previous one
stopped, according to its checkpoint. Each message is written once, in the order of its queue.
"""

from __future__ import annotations

import contextlib
import json
import posixpath
import re
import sys
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from fsspec.core import url_to_fs

from rmqstore_spark.datasource.options.option import BATCH
from rmqstore_spark.errors import OptionError
from rmqstore_spark.pipelines.arguments import Endpoint, Job, StoreArguments, as_parser
from rmqstore_spark.pipelines.running import follow_to_the_end, run_job, session
from rmqstore_spark.pipelines.targets import (
    TopicMap,
    create_topics,
    queues_read,
    target_options,
    write_option,
)
from rmqstore_spark.pipelines.tasks import RATE_SECONDS, paced, rows_at_once

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = 0
    if not 1 <= rate < float("inf"):
        raise ValueError(f"must be a number of 1 or more, not {text!r}")
    return rate


@dataclass(frozen=True, kw_only=True)
class ReplayArguments(StoreArguments):
    """The arguments of the job."""

    endpoint: Endpoint
    checkpoint: Annotated[
        str, typer.Option("--checkpoint", metavar="FOLDER", help="folder for the replay's progress")
    ]
    parquet: Annotated[
        bool,
        typer.Option(
            "--parquet",
            help="STORE is a folder of Parquet files, as the jobs backfill and stream_to_parquet "
            "write them",
        ),
    ] = False
    map: Annotated[
        list[str],
        typer.Option(
            "--map",
            metavar="OLD=NEW",
            help="write topic OLD as NEW; * stands for any text, as in '*=copy_*'; repeat it for "
            "several, the first match counts",
        ),
    ] = field(default_factory=list)
    rate: Annotated[
        float | None,
        typer.Option(
            "--rate",
            metavar="N",
            parser=as_parser(_rate),
            help="at most N messages a second, 1 or more; one task then reads and writes all of "
            f"them, and commits {RATE_SECONDS} seconds' worth together",
        ),
    ] = None
    write: Annotated[list[str], write_option(streaming=True)] = field(default_factory=list)

    def target_options(self) -> dict[str, str]:
        """Return the sink's options, its endpoint included.

        Raises:
            OptionError: an option is unknown or wrong.
        """
        return target_options(self.endpoint, self.write, streaming=True)


_NEEDED: Final = ("topic", "queueId", "queueOffset", "storeTimestamp", "body")


class Slices:
    """The checkpoint of a replay of Parquet.

    Args:
        url: its folder, on any file system of fsspec.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._fs, root = url_to_fs(url)
        self._root = root.rstrip("/")

    def plan(self) -> dict[str, Any] | None:
        """Return the plan of an earlier run, or None in a new folder."""
        try:
            stored: dict[str, Any] = json.loads(self._fs.cat_file(self._path("plan.json")))
        except FileNotFoundError:
            return None
        return stored

    def make_plan(self, arguments: Mapping[str, Any], bounds: Sequence[int]) -> dict[str, Any]:
        """Store a plan.

        Args:
            arguments: the arguments that must be the same when a run continues.
            bounds: first storeTimestamp of each slice but the first, in microseconds.
        """
        plan = {
            "version": 1,
            "id": f"replay-{uuid.uuid4().hex}",
            "arguments": dict(arguments),
            "bounds": list(bounds),
        }
        self._fs.makedirs(self._path("done"), exist_ok=True)
        half = self._path(f".plan-{plan['id']}")
        self._fs.pipe_file(half, json.dumps(plan).encode())
        self._fs.mv(half, self._path("plan.json"))
        return plan

    def check(self, plan: Mapping[str, Any], arguments: Mapping[str, Any]) -> None:
        """Check that a run continues the same work.

        Raises:
            OptionError: the folder belongs to another replay.
        """
        if plan["arguments"] != dict(arguments):
            raise OptionError(
                f"{self._url} is the checkpoint of a replay with other arguments: "
                f"{json.dumps(plan['arguments'])}. Repeat those, or use a new folder."
            )

    def done(self) -> set[int]:
        """Return the numbers of the slices that are written."""
        with contextlib.suppress(FileNotFoundError):
            return {int(posixpath.basename(p)) for p in self._fs.ls(self._path("done"), False)}
        return set()

    def mark(self, number: int) -> None:
        """Record that a slice is written."""
        self._fs.pipe_file(self._path(f"done/{number}"), b"")

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"


def replay_parquet(spark: SparkSession, arguments: ReplayArguments) -> int:
    """Replay Parquet files; return the number of rows that this run wrote."""
    given = sorted(arguments.source)
    if given:
        raise OptionError(
            f"Option --parquet excludes options of the source: remove {', '.join(given)}, and "
            "give the folder of the topics and dates to replay."
        )
    topics = TopicMap.parse(arguments.map)
    # Otherwise Spark would read topics that look like numbers as numbers.
    spark.conf.set("spark.sql.sources.partitionColumnTypeInference.enabled", "false")
    rows = _read(spark, arguments.store)
    missing = [name for name in _NEEDED if name not in rows.columns]
    if missing:
        raise OptionError(
            f"The Parquet files of {arguments.store} lack the columns {', '.join(missing)}: "
            "replay files that the job backfill wrote with these columns."
        )
    slices = Slices(arguments.checkpoint)
    same = {"store": arguments.store, "endpoint": arguments.endpoint, "map": arguments.map}
    plan = slices.plan()
    if plan is None:
        plan = slices.make_plan(same, _bounds(rows, arguments.rate))
    slices.check(plan, same)
    options = arguments.target_options()
    create_topics(options, topics.queues(_queues_in(rows)))
    return _write(rows, topics, options, slices, plan, arguments.rate)


def _read(spark: SparkSession, folder: str) -> DataFrame:
    from pyspark.errors import AnalysisException

    try:
        return spark.read.option("basePath", _base(folder)).parquet(folder).drop("date")
    except AnalysisException as error:
        reason = (str(error).splitlines() or ["Spark gave no reason"])[0]
        raise OptionError(f"{folder} is not a readable folder of Parquet files: {reason}") from None


def _base(folder: str) -> str:
    """Return the folder above `topic=NAME`, if folders name the topics."""
    return re.split(r"/[^/=]+=", folder, maxsplit=1)[0]


def _bounds(rows: DataFrame, rate: float | None) -> list[int]:
    """Return where slices begin; each has about as many rows as are written at once."""
    parts = -(-rows.count() // rows_at_once(rate))
    if parts < 2:
        return []
    times = rows.selectExpr("unix_micros(storeTimestamp) AS at")
    wanted = [number / parts for number in range(1, parts)]
    found = times.approxQuantile("at", wanted, min(0.001, 0.1 / parts))
    return sorted({int(at) for at in found})


def _queues_in(rows: DataFrame) -> dict[str, int]:
    highest = rows.groupBy("topic").agg({"queueId": "max"}).collect()
    return {topic: last + 1 for topic, last in highest}


def _write(
    rows: DataFrame,
    topics: TopicMap,
    options: Mapping[str, str],
    slices: Slices,
    plan: Mapping[str, Any],
    rate: float | None,
) -> int:
    from pyspark.sql import Observation
    from pyspark.sql import functions as sf

    bounds = plan["bounds"]
    done, total = slices.done(), 0
    for number, (start, end) in enumerate(zip([None, *bounds], [*bounds, None], strict=True)):
        if number in done:
            continue
        piece = rows
        if start is not None:
            piece = piece.where(f"storeTimestamp >= timestamp_micros({start})")
        if end is not None:
            piece = piece.where(f"storeTimestamp < timestamp_micros({end})")
        piece = piece.repartition("topic", "queueId") if rate is None else piece.coalesce(1)
        piece = piece.sortWithinPartitions("storeTimestamp", "topic", "queueId", "queueOffset")
        if rate is not None:
            piece = paced(piece, rate)
        count = Observation()
        (
            topics.apply(piece)
            .observe(count, sf.count(sf.lit(1)).alias("rows"))
            .write.format("rmqstore")
            .options(**options, txnAppId=plan["id"], txnVersion=str(number))
            .mode("append")
            .save()
        )
        slices.mark(number)
        total += count.get["rows"]
        print(f"slice {number + 1} of {len(bounds) + 1}: {count.get['rows']:,} rows", flush=True)
    return total


JOB: Final = Job(
    "replay",
    ReplayArguments,
    "Write messages of RocketMQ stores, or of Parquet, to stores.",
    without=BATCH,
)


def start_query(spark: SparkSession, arguments: ReplayArguments) -> StreamingQuery:
    """Start the replay of stores that the arguments describe."""
    options = arguments.target_options()
    topics = TopicMap.parse(arguments.map)
    source = {
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": str(rows_at_once(arguments.rate)),
        "maxBytesPerTrigger": "256m",  # bodies may be compressed: far below maxTransactionBytes
        **arguments.source_options(),
    }
    create_topics(options, topics.queues(queues_read(source, streaming=True)))
    rows = spark.readStream.format("rmqstore").options(**source).load()
    if arguments.rate:
        rows = paced(rows, arguments.rate)
    return (
        topics.apply(rows)
        .writeStream.format("rmqstore")
        .options(**options)
        .option("checkpointLocation", arguments.checkpoint)
        .trigger(availableNow=True)
        .queryName("replay")
        .start()
    )


def replay(spark: SparkSession, arguments: ReplayArguments) -> None:
    """Replay messages, and print how many this run wrote.

    Raises:
        KeyboardInterrupt: the run was interrupted; another run can continue it.
    """
    if arguments.parquet:
        rows, ended = replay_parquet(spark, arguments), True
    else:
        done = follow_to_the_end(lambda: start_query(spark, arguments))
        rows, ended = done.rows, done.ended
    print(f"{rows:,} message(s) replayed to {arguments.endpoint}", flush=True)
    if not ended:
        raise KeyboardInterrupt


def main(command: list[str] | None = None) -> int:
    """Run the job; return the exit code."""
    arguments = JOB.parse(command)
    return run_job(lambda: _run(arguments), [arguments.checkpoint])


def _run(arguments: ReplayArguments) -> None:
    # Reports errors before Spark starts.
    arguments.target_options()
    TopicMap.parse(arguments.map)
    if not arguments.parquet:
        arguments.check_source(streaming=True)
    with session("rmqstore replay") as spark:
        replay(spark, arguments)


if __name__ == "__main__":
    sys.exit(main())
