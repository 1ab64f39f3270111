"""Replay Parquet files in slices of storeTimestamp, each written whole and once.

    CHECKPOINT/plan.json     the id of the replay, and where its slices begin; written first
    CHECKPOINT/done/17       slice 17 is written

A slice whose mark is missing is written again. That changes nothing, because the store recognizes
it by the replay's id and the slice's number. Times do not decrease along a queue, and rows are
sorted within a slice, so queues keep their order.
"""

from __future__ import annotations

import contextlib
import json
import posixpath
import re
import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from fsspec.core import url_to_fs

from rmqstore_spark.errors import OptionError
from rmqstore_spark.pipelines.pacing import paced, rows_at_once
from rmqstore_spark.pipelines.replay_arguments import ReplayArguments
from rmqstore_spark.pipelines.target_topics import create_topics
from rmqstore_spark.pipelines.targets import TopicMap

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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
