"""Spark reads from and writes to RocketMQ's own broker, against RocketMQ's own Java clients."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from benchmarks.clients.brokers import QUEUES, Bench
from benchmarks.clients.rounds import count_of, middle
from benchmarks.means.cpu import measured_cpu
from benchmarks.report.figures import Figure, met
from benchmarks.spark.queries import session
from benchmarks.spark.sink import rows_to_write

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["spark_client_figures"]

_CORES: Final = 2
_PULLED: Final = {100: 1_000_000, 1024: 300_000}
_SENT: Final = {100: 300_000, 1024: 100_000}
_PULL_THREADS: Final = (1, 3, QUEUES)
_BATCHES: Final = (32, 1000)
_BATCH_THREADS: Final = 16
_TRIES: Final = 5
_AIM_PULLED: Final = {3: 1.0}
_AIM_SENT: Final = 1.0

_SECTION: Final = f"Spark with RocketMQ's own broker, local[{_CORES}]"


def spark_client_figures(bench: Bench) -> Iterator[Figure]:
    """Pull all messages of a topic, and send rows to another one."""
    with session() as spark:
        for size, count in _PULLED.items():
            yield from _pulled(bench, spark, size, count_of(count))
        for size, count in _SENT.items():
            yield from _sent(bench, spark, size, count_of(count))


def _pulled(bench: Bench, spark: SparkSession, size: int, count: int) -> Iterator[Figure]:
    topic = bench.topic(bench.theirs, f"pulled-{size}")
    bench.load.fill(topic, size, count)
    reader = spark.read.format("rmqstore").options(namesrvAddr=bench.name_server, subscribe=topic)
    frame = reader.load()
    if (found := frame.count()) != count:  # the first round, which warms up
        raise SystemExit(f"Spark pulled {found} of {count} messages")
    ours, *theirs = bench.in_turns(
        lambda: count / _seconds(lambda: _read(frame)),
        *(lambda number=number: bench.load.pull(topic, number) for number in _PULL_THREADS),
    )
    for number, rates in zip(_PULL_THREADS, theirs, strict=True):
        yield _figure(
            f"{size} B, Spark pulls, all columns", middle(ours),
            f"Java pull consumer, {number} thread{'s' if number > 1 else ''}", middle(rates),
            _AIM_PULLED.get(number),
        )  # fmt: skip
    what = f"{size} B, Spark pulls, all columns: CPU of a message"
    yield _cpu_figure(bench, what, count, middle(ours), lambda: _read(frame))


def _read(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _sent(bench: Bench, spark: SparkSession, size: int, count: int) -> Iterator[Figure]:
    topic = bench.topic(bench.theirs, f"sent-{size}")
    rows = rows_to_write(spark, size, count)
    writer = rows.write.format("rmqstore").mode("append")
    writer = writer.options(namesrvAddr=bench.name_server, topic=topic)
    writer.save()  # the first round, which warms up
    ours, *theirs = bench.in_turns(
        lambda: count / _seconds(writer.save),
        *(
            lambda batch=batch: bench.load.send(topic, _BATCH_THREADS, size, batch).rate
            for batch in _BATCHES
        ),
    )
    for batch, rates in zip(_BATCHES, theirs, strict=True):
        yield _figure(
            f"{size} B, Spark sends, keys and tags", middle(ours),
            f"Java producer, {_BATCH_THREADS} threads, batches of {batch:,}", middle(rates),
            _AIM_SENT,
        )  # fmt: skip
    what = f"{size} B, Spark sends, keys and tags: CPU of a message"
    yield _cpu_figure(bench, what, count, middle(ours), writer.save)


def _seconds(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _figure(what: str, mine: float, against: str, other: float, aim: float | None) -> Figure:
    return Figure(
        _SECTION, what, f"{mine:,.0f} msg/s", against, f"{other:,.0f} msg/s",
        f"{mine / other:.2f}", *(() if aim is None else (f"{aim:g}", met(mine >= aim * other))),
    )  # fmt: skip


def _cpu_figure(
    bench: Bench, what: str, count: int, rate: float, work: Callable[[], object]
) -> Figure:
    """Measure once more, and return what a message took, and how far that bounds the rate."""
    for _ in range(_TRIES):
        with measured_cpu(bench.broker_process, "broker") as cpu:
            work()
        if cpu.is_whole:
            break
    else:
        raise SystemExit("Processes of Spark ended while their CPU was measured. Run this again.")
    bound = cpu.bound(count)
    return Figure(
        _SECTION, what, cpu.of_each(count), f"what {_CORES} busy cores would reach",
        f"{bound:,.0f} msg/s", f"{rate / bound:.2f}",
    )  # fmt: skip
