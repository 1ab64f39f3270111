"""Streams: rows a second against a batch query, small micro-batches, and the latency of a tail.

`python -m benchmarks --only streams` measures this alone.
"""

from __future__ import annotations

import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.figures import Figure
from benchmarks.spark import session
from benchmarks.stores import Shape, Stores, record_size
from rmqstore_spark.client import StoreClient
from rmqstore_spark.embedding import EmbeddedStore
from tests.support.serving import block_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["stream_figures"]

_SECTION: Final = "Streams, noop sink, local[2], 100 B"
_QUEUES: Final = (4, 64, 1_000)
_MESSAGES: Final = 3_000_000
_LARGE: Final = 500_000
_AIM: Final = 0.85
_SMALL: Final = 1_000
_SMALL_BATCHES: Final = 40
_SMALL_AIM: Final = 1.2
_ROUNDS: Final = 3
_TAIL_QUEUES: Final = 1_000
_TAIL_TOPICS: Final = 10
_TAIL_MESSAGES: Final = 300
_TAIL_WARM: Final = 50
_TAIL_PAUSE: Final = 0.3
_PATIENCE: Final = 300.0


def stream_figures(stores: Stores) -> Iterator[Figure]:
    """Large micro-batches against a batch query, small ones by plan, and a tail."""
    with session() as spark:
        for queues in _QUEUES:
            yield _large(spark, stores(Shape(100, queues, _MESSAGES)), queues)
        yield _small(spark, stores(Shape(100, 64, _MESSAGES)))
        yield from _tail(spark)


def _large(spark: SparkSession, store: Path, queues: int) -> Figure:
    batches, streams = [], []
    for _ in range(_ROUNDS + 1):  # in turns: the machine is not the same all the time
        batches.append(_batch_rate(spark, store))
        took = _triggers(spark, store, maxOffsetsPerTrigger=_LARGE)
        streams.append(_LARGE * len(took) / sum(took))
    batch, stream = statistics.median(batches[1:]), statistics.median(streams[1:])
    ratio = stream / batch
    return Figure(
        _SECTION,
        f"{queues:,} queues, micro-batches of {_LARGE:,}",
        f"{stream / 1e6:.2f} M/s",
        "the same rows in a batch query",
        f"{batch / 1e6:.2f} M/s",
        f"{ratio:.2f}",
        f"{_AIM}",
        "yes" if ratio >= _AIM else "no",
        note="without the first micro-batch, which starts the processes",
    )


def _small(spark: SparkSession, store: Path) -> Figure:
    found: dict[str, list[float]] = {"auto": [], "queue": []}
    for _ in range(_ROUNDS + 1):
        for plan_by, seconds in found.items():
            starts = {str(n): (_MESSAGES - _SMALL * _SMALL_BATCHES) // 64 for n in range(64)}
            took = _triggers(
                spark,
                store,
                planBy=plan_by,
                maxOffsetsPerTrigger=_SMALL,
                startingOffsets=json.dumps({"orders": starts}),
            )
            seconds.append(statistics.median(took))
    auto, queue = (statistics.median(found[plan_by][1:]) for plan_by in ("auto", "queue"))
    ratio = auto / queue
    return Figure(
        _SECTION,
        f"64 queues, micro-batches of {_SMALL:,}: each",
        f"{auto * 1e3:.0f} ms",
        "planBy=queue",
        f"{queue * 1e3:.0f} ms",
        f"{ratio:.2f}",
        f"at most {_SMALL_AIM}",
        "yes" if ratio <= _SMALL_AIM else "no",
    )


def _batch_rate(spark: SparkSession, store: Path) -> float:
    size = _MESSAGES * record_size(100) // 2 + 1
    began = time.perf_counter()
    frame = spark.read.format("rmqstore").option("maxBytesPerPartition", size).load(str(store))
    frame.write.format("noop").mode("overwrite").save()
    return _MESSAGES / (time.perf_counter() - began)


def _triggers(spark: SparkSession, store: Path, **options: Any) -> list[float]:
    """Seconds of each whole micro-batch of a stream over a store, but the first."""
    with tempfile.TemporaryDirectory(prefix="rmqstore-bench-") as checkpoint:
        given = {"startingOffsets": "earliest", **options}
        frame = spark.readStream.format("rmqstore").options(**given).load(str(store))
        writer = frame.writeStream.format("noop").option("checkpointLocation", checkpoint)
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        done = [json.loads(progress.json) for progress in query.recentProgress]
    most = options["maxOffsetsPerTrigger"]
    whole = [p for p in done if p["numInputRows"] == most][1:]
    return [p["durationMs"]["triggerExecution"] / 1000 for p in whole]


def _tail(spark: SparkSession) -> Iterator[Figure]:
    """One message after the other to one of many queues, with a trigger each 100 ms."""
    topics = [f"topic{number:02}" for number in range(_TAIL_TOPICS)]
    each = _TAIL_QUEUES // _TAIL_TOPICS
    with tempfile.TemporaryDirectory(prefix="rmqstore-bench-") as folder:
        process = EmbeddedStore(f"{folder}/store")
        endpoint = process.start()
        try:
            with StoreClient(endpoint) as client:
                for topic in topics:
                    client.create_topic(topic, read_queue_nums=each, write_queue_nums=each)
                    with client.put_stream() as stream:
                        stream.put(block_of([b"0"] * each, topic, list(range(each))))
                yield from _follow(spark, f"{folder}/store", client, topics, each)
        finally:
            process.stop()


def _follow(
    spark: SparkSession, store: str, client: StoreClient, topics: list[str], each: int
) -> Iterator[Figure]:
    begun: list[float] = []
    read: list[float] = []

    def take(frame: DataFrame, _: int) -> None:
        now = time.time()
        bodies = frame.select("body").toArrow().column("body").to_pylist()
        after = time.time()
        begun.extend(now - float(body) for body in bodies)
        read.extend(after - float(body) for body in bodies)

    frame = spark.readStream.format("rmqstore").option("startingOffsets", "latest").load(store)
    query = frame.writeStream.foreachBatch(take).trigger(processingTime="100 milliseconds").start()
    try:
        _until(lambda: bool(query.recentProgress))
        with client.put_stream() as stream:
            for number in range(_TAIL_MESSAGES):
                body = f"{time.time():.6f}".encode()
                topic, queue_id = random.choice(topics), random.randrange(each)  # noqa: S311
                stream.put(block_of([body], topic, [queue_id]))
                time.sleep(_TAIL_PAUSE * random.uniform(0.5, 1.5))  # noqa: S311
                if number == 0:
                    _until(lambda: len(read) >= 1)  # the JVM and the workers have started
        _until(lambda: len(read) >= _TAIL_MESSAGES)
        done = [json.loads(progress.json) for progress in query.recentProgress]
    finally:
        query.stop()
    busy = [p["durationMs"] for p in done if p["numInputRows"]][_TAIL_WARM // 2 :]
    planned, added = (
        statistics.median(durations.get(name, 0) for durations in busy)
        for name in ("latestOffset", "addBatch")
    )
    for what, times in (("to foreachBatch", begun), ("until its rows are read", read)):
        ordered = sorted(times[_TAIL_WARM:])
        yield Figure(
            "Streams, a tail over 1,000 queues, a trigger each 100 ms",
            f"from put {what}: median",
            f"{statistics.median(ordered) * 1e3:.0f} ms",
            "p99",
            f"{ordered[len(ordered) * 99 // 100] * 1e3:.0f} ms",
            note=f"of a trigger, latestOffset takes {planned:.0f} ms and addBatch {added:.0f} ms; "
            "the rest is Spark's own, as its two writes to the checkpoint",
        )


def _until(condition: Callable[[], bool]) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + _PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("the stream does not go on")
        time.sleep(0.05)
