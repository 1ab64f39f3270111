"""Streams: rows a second against a batch query, small micro-batches, and the latency of a tail.

`python -m benchmarks --only streams` measures this alone.
"""

from __future__ import annotations

import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from benchmarks.means.cpu import Cpu, measured_cpu
from benchmarks.means.stores import Shape, Stores, record_size
from benchmarks.report.figures import Figure, ratio_cells, spread
from benchmarks.spark.queries import session
from rmqstore_spark.client import StoreClient
from rmqstore_spark.embedding import EmbeddedStore
from tests.support.processes.serving import block_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["stream_figures"]

_SECTION: Final = "Streams, noop sink, local[2], 100 B"
_QUEUES: Final = (4, 64, 1_000)
_MESSAGES: Final = 3_000_000
_LARGE: Final = 500_000
_AIM: Final = 0.8
_BATCH: Final = "the same rows in a batch query"
_STEPS: Final = ("latestOffset", "walCommit", "queryPlanning", "addBatch", "commitOffsets")
_SMALL: Final = 1_000
_SMALL_BATCHES: Final = 40
_SMALL_AIM: Final = 1.2
_ROUNDS: Final = 3
_TAIL_QUEUES: Final = 1_000
_TAIL_TOPICS: Final = 10
_TAIL_MESSAGES: Final = 300
_TAIL_WARM: Final = 50
_TAIL_PAUSE: Final = 0.3  # seconds, on average
_TRIGGER: Final = 100  # milliseconds
_PATIENCE: Final = 300.0


def stream_figures(stores: Stores) -> Iterator[Figure]:
    """Large micro-batches against a batch query, small ones by plan, and a tail."""
    with session() as spark:
        spark.sparkContext.setLogLevel("ERROR")  # else each trigger that overruns is logged
        for queues in _QUEUES:
            yield from _large(spark, stores(Shape(100, queues, _MESSAGES)), queues)
        yield _small(spark, stores(Shape(100, 64, _MESSAGES)))
        yield from _tail(spark)


def _large(spark: SparkSession, store: Path, queues: int) -> Iterator[Figure]:
    what = f"{queues:,} queues, micro-batches of {_LARGE:,}"
    rates: dict[str, list[float]] = {_BATCH: [], what: []}
    cpu = {name: Cpu() for name in rates}
    steps: list[Mapping[str, float]] = []
    for number in range(_ROUNDS + 1):  # in turns: the machine is not the same all the time
        with measured_cpu() as of_batch:
            rates[_BATCH].append(_batch_rate(spark, store))
        with measured_cpu() as of_stream:
            took = _triggers(spark, store, maxOffsetsPerTrigger=_LARGE)
        rates[what].append(_LARGE * len(took) / sum(one["triggerExecution"] for one in took))
        if number:
            cpu[_BATCH].add(of_batch)
            cpu[what].add(of_stream)
            steps += took
    batch, stream = (statistics.median(found[1:]) for found in rates.values())
    ratios = [of / other for other, of in zip(*rates.values(), strict=True)][1:]
    yield Figure(
        _SECTION,
        what,
        f"{stream / 1e6:.2f} M/s",
        _BATCH,
        f"{batch / 1e6:.2f} M/s",
        *ratio_cells(statistics.median(ratios), _AIM),
        note=f"{spread(ratios)}, without the first micro-batch, which starts the processes; "
        f"medians: {_medians(steps)}",
    )
    rows = _ROUNDS * _MESSAGES
    yield Figure(
        _SECTION,
        f"{what}: CPU of a row",
        cpu[what].of_each(rows),
        _BATCH,
        cpu[_BATCH].of_each(rows),
        f"{cpu[what].seconds / cpu[_BATCH].seconds:.2f}",
    )


def _medians(steps: Sequence[Mapping[str, float]]) -> str:
    """What the steps of micro-batches took, as Spark reports them."""
    return ", ".join(
        f"{name} {statistics.median(step.get(name, 0.0) for step in steps) * 1e3:.0f} ms"
        for name in _STEPS
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
            seconds.append(statistics.median(one["triggerExecution"] for one in took))
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


def _triggers(spark: SparkSession, store: Path, **options: Any) -> list[Mapping[str, float]]:
    """Seconds of the steps of each whole micro-batch of a stream over a store, but the first."""
    with tempfile.TemporaryDirectory(prefix="rmqstore-bench-") as checkpoint:
        given = {"startingOffsets": "earliest", **options}
        frame = spark.readStream.format("rmqstore").options(**given).load(str(store))
        writer = frame.writeStream.format("noop").option("checkpointLocation", checkpoint)
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        done = [json.loads(progress.json) for progress in query.recentProgress]
    most = options["maxOffsetsPerTrigger"]
    whole = [p for p in done if p["numInputRows"] == most][1:]
    if not whole:
        raise AssertionError(f"{len(done)} micro-batches, and no second one of {most:,} rows")
    return [{name: took / 1e3 for name, took in p["durationMs"].items()} for p in whole]


def _tail(spark: SparkSession) -> Iterator[Figure]:
    """One message after the other to one of many queues, with a trigger each 100 ms."""
    topics = [f"topic{number:02}" for number in range(_TAIL_TOPICS)]
    each = _TAIL_QUEUES // _TAIL_TOPICS
    with tempfile.TemporaryDirectory(prefix="rmqstore-bench-") as folder:
        store = f"{folder}/store"
        with EmbeddedStore(store) as endpoint, StoreClient(endpoint) as client:
            for topic in topics:
                client.create_topic(topic, read_queue_nums=each, write_queue_nums=each)
                with client.put_stream() as stream:
                    stream.put(block_of([b"0"] * each, topic, list(range(each))))
            tail = spark.readStream.format("rmqstore").load(store)
            with _Followed(spark, tail, "body") as followed:
                followed.wait(lambda: followed.is_started)
                with client.put_stream() as stream:
                    for number in range(_TAIL_MESSAGES):
                        topic, queue_id = random.choice(topics), random.randrange(each)  # noqa: S311
                        body = f"{time.time():.6f}".encode()
                        stream.put(block_of([body], topic, [queue_id]))
                        time.sleep(_TAIL_PAUSE * random.uniform(0.5, 1.5))  # noqa: S311
                        if number < _TAIL_WARM:  # until the JVM and the workers are warm
                            followed.wait_for_rows(number + 1)
                followed.wait_for_rows(_TAIL_MESSAGES)
        rate = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
        with _Followed(spark, rate, "value") as idle:
            idle.wait_for_rows(_TAIL_MESSAGES)
    yield from _tail_figures(followed, idle)


class _Followed:
    """A stream into `foreachBatch`, and when its micro-batches and their rows came there.

    Attributes:
        begun: by micro-batch, when `foreachBatch` was called, in seconds since 1970.
        read: when each row had been collected, and the row, which is when a message was put.
    """

    def __init__(self, spark: SparkSession, frame: DataFrame, column: str) -> None:
        self.begun: dict[int, float] = {}
        self.read: list[tuple[int, float, float]] = []
        self._column = column
        spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", 100_000)
        writer = frame.writeStream.foreachBatch(self._take)
        self._query = writer.trigger(processingTime=f"{_TRIGGER} milliseconds").start()

    def __enter__(self) -> _Followed:
        return self

    def __exit__(self, *_: object) -> None:
        self._query.stop()

    def _take(self, frame: DataFrame, number: int) -> None:
        now = time.time()
        values = frame.select(self._column).toArrow().column(0).to_pylist()
        after = time.time()
        self.begun[number] = now
        self.read += [(number, after, float(value)) for value in values]

    @property
    def is_started(self) -> bool:
        """Whether a trigger has run, so that what comes now is new."""
        return bool(self._query.recentProgress)

    def wait(self, condition: Callable[[], bool]) -> None:
        """Wait until something is so, while the query runs."""
        deadline = time.monotonic() + _PATIENCE
        while not condition():
            if self._query.exception() is not None:
                raise RuntimeError(f"the query failed: {self._query.exception()}")
            if time.monotonic() > deadline:
                raise TimeoutError("the stream does not continue")
            time.sleep(0.01)

    def wait_for_rows(self, count: int) -> None:
        """Wait until so many rows have been collected."""
        self.wait(lambda: len(self.read) >= count)

    def steps(self) -> list[Mapping[str, float]]:
        """Seconds of the steps of the warm micro-batches, as Spark reports them."""
        return [{name: ms / 1e3 for name, ms in p["durationMs"].items()} for p in self._warm()]

    def starts(self) -> list[float]:
        """Seconds from the start of each warm trigger to `foreachBatch`."""
        return [self.begun[p["batchId"]] - _began(p) for p in self._warm()]

    def arrivals(self) -> Iterator[_Arrival]:
        """Each row of the warm micro-batches of one row."""
        done = self._progress()
        ends = {p["batchId"]: _began(p) + p["durationMs"]["triggerExecution"] / 1e3 for p in done}
        rows = {number: value for number, _, value in self.read}
        for p in self._warm():
            if p["numInputRows"] == 1:
                number = p["batchId"]
                put, noticed = rows[number], _began(p) + p["durationMs"]["latestOffset"] / 1e3
                is_free = ends.get(number - 1, 0.0) <= put
                yield _Arrival(noticed - put, self.begun[number] - put, is_free)

    def _progress(self) -> list[dict[str, Any]]:
        done = (json.loads(progress.json) for progress in self._query.recentProgress)
        return [p for p in done if p["numInputRows"] and p["batchId"] in self.begun]

    def _warm(self) -> list[dict[str, Any]]:
        return self._progress()[_TAIL_WARM:]


class _Arrival(NamedTuple):
    """A message that came alone.

    Attributes:
        noticed: seconds from its put to the answer of `latestOffset`.
        begun: seconds from its put to `foreachBatch`.
        is_free: whether the micro-batch before it had ended when it was put.
    """

    noticed: float
    begun: float
    is_free: bool


def _began(progress: Mapping[str, Any]) -> float:
    """Return when a trigger began, in seconds since 1970."""
    return datetime.fromisoformat(progress["timestamp"].replace("Z", "+00:00")).timestamp()


def _tail_figures(followed: _Followed, idle: _Followed) -> Iterator[Figure]:
    begun = [followed.begun[n] - put for n, _, put in followed.read][_TAIL_WARM:]
    read = [after - put for _, after, put in followed.read][_TAIL_WARM:]
    starts, floor = followed.starts(), idle.starts()
    steps = f"medians: {_medians(followed.steps())}; Spark alone: {_medians(idle.steps())}"
    arrivals = list(followed.arrivals())
    free = [one for one in arrivals if one.is_free]
    # Messages come at any time, and wait for the next trigger: half an interval, or all of it.
    for what, of, wait in (("median", statistics.median, 0.5), ("p99", _p99, 1.0)):
        yield _latency(
            f"from put to foreachBatch: {what}",
            of(begun),
            "the wait for a trigger, and Spark alone",
            wait * _TRIGGER / 1e3 + of(floor),
            f"until its rows are read: {of(read) * 1e3:.0f} ms",
        )
        yield _latency(
            f"from put to foreachBatch, if no micro-batch is at work: {what}",
            of([one.begun for one in free]),
            "the answer of latestOffset",
            of([one.noticed for one in free]),
            f"{len(free)} of {len(arrivals)} messages",
        )
        yield _latency(
            f"from a trigger to foreachBatch: {what}",
            of(starts),
            "Spark alone, a row of its rate source",
            of(floor),
            steps if what == "median" else "",
        )


def _latency(name: str, ours: float, against: str, other: float, note: str) -> Figure:
    return Figure(
        f"Streams, a tail over {_TAIL_QUEUES:,} queues, a trigger each {_TRIGGER} ms",
        name,
        f"{ours * 1e3:.0f} ms",
        against,
        f"{other * 1e3:.0f} ms",
        f"{ours / other:.2f}",
        note=note,
    )


def _p99(values: list[float]) -> float:
    return sorted(values)[len(values) * 99 // 100]
