"""What Java clients get from a store process as their broker, against RocketMQ's own broker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from benchmarks.clients.brokers import QUEUES, Bench
from benchmarks.clients.load import Sent
from benchmarks.clients.rounds import count_of, middle
from benchmarks.report.figures import Figure, met

__all__ = ["java_figures"]

_SIZES: Final = (100, 1024)
_THREADS: Final = (1, 16, 64)
_BATCH: Final = 32
_BATCH_THREADS: Final = 16
_CONSUMED: Final = {100: 150_000, 1024: 100_000}
_CONSUMER_ROUNDS: Final = 9
"""Rates of push consumers differ twofold from one round to the next, with both brokers."""
_MORE: Final = 1.25
"""How many times as many messages there are as are consumed: no queue ends before the others."""
_AWAITED: Final = 200
_WARM_UP_SECONDS: Final = 4.0

_AIM_RATE: Final = 1.0
_AIM_ALONE: Final = 0.8
_AIM_P99: Final = 1.2
_AIM_MS: Final = 5.0

_SECTION: Final = "A store process as the broker of RocketMQ's Java clients, ASYNC_FLUSH"


def java_figures(bench: Bench) -> Iterator[Figure]:
    """Send messages and batches, consume a backlog, and wait for single messages."""
    for side in (bench.theirs, bench.ours):
        bench.load.warm_up(bench.topic(side, "warm"), _WARM_UP_SECONDS)
    for size in _SIZES:
        for threads in _THREADS:
            yield from _sent(bench, size, threads)
    for size in _SIZES:
        yield _batches(bench, size)
    for size in _SIZES:
        yield _consumed(bench, size)
    yield _awaited(bench)


def _sent(bench: Bench, size: int, threads: int) -> Iterator[Figure]:
    ours, theirs = bench.both_in_turns(
        lambda side: bench.load.send(bench.topic(side, f"{size}"), threads, size)
    )
    name = f"{size} B, {threads} thread{'s' if threads > 1 else ''}"
    aim = _AIM_RATE if threads > 1 else _AIM_ALONE
    yield _rates(bench, f"{name}, single sends", ours, theirs, aim)
    mine, other = (middle(sent.p99_ms for sent in sends) for sends in (ours, theirs))
    ratio = mine / other
    yield Figure(
        _SECTION, f"{name}, time of a send, p99", f"{mine:.2f} ms", f"RocketMQ {bench.version}",
        f"{other:.2f} ms", f"{ratio:.2f}", f"at most {_AIM_P99}", met(ratio <= _AIM_P99),
    )  # fmt: skip


def _batches(bench: Bench, size: int) -> Figure:
    ours, theirs = bench.both_in_turns(
        lambda side: bench.load.send(bench.topic(side, f"{size}"), _BATCH_THREADS, size, _BATCH),
    )
    name = f"{size} B, {_BATCH_THREADS} threads, batches of {_BATCH}"
    return _rates(bench, name, ours, theirs, _AIM_RATE)


def _rates(bench: Bench, name: str, ours: list[Sent], theirs: list[Sent], aim: float) -> Figure:
    mine, other = (middle(sent.rate for sent in sends) for sends in (ours, theirs))
    failures = [
        f"{sum(sent.failed for sent in sends)} sends to {who} failed: {sends[-1].failure}"
        for who, sends in (("the store process", ours), ("RocketMQ", theirs))
        if any(sent.failed for sent in sends)
    ]
    return Figure(
        _SECTION, name, f"{mine:,.0f} msg/s", f"RocketMQ {bench.version}", f"{other:,.0f} msg/s",
        f"{mine / other:.2f}", f"{aim:g}", met(mine >= aim * other), "; ".join(failures),
    )  # fmt: skip


def _consumed(bench: Bench, size: int) -> Figure:
    count = count_of(_CONSUMED[size])
    backlog = int(count * _MORE)
    topics = {side: bench.topic(side, f"backlog-{size}") for side in (bench.theirs, bench.ours)}
    for topic in topics.values():
        bench.load.fill(topic, size, backlog)
    ours, theirs = bench.both_in_turns(
        lambda side: bench.load.consume(topics[side], count), _CONSUMER_ROUNDS
    )
    mine, other = middle(ours), middle(theirs)
    return Figure(
        _SECTION, f"{size} B, push consumer, backlog of {backlog:,}",
        f"{mine:,.0f} msg/s", f"RocketMQ {bench.version}", f"{other:,.0f} msg/s",
        f"{mine / other:.2f}", f"{_AIM_RATE:g}", met(mine >= _AIM_RATE * other),
        f"{min(ours):,.0f} to {max(ours):,.0f}, RocketMQ {min(theirs):,.0f} to {max(theirs):,.0f}",
    )  # fmt: skip


def _awaited(bench: Bench) -> Figure:
    ours, theirs = bench.both_in_turns(
        lambda side: bench.load.wait(bench.topic(side, "awaited"), QUEUES, count_of(_AWAITED)),
    )
    mine, other = (middle(times.median_ms for times in found) for found in (ours, theirs))
    tails = (middle(times.p99_ms for times in found) for found in (ours, theirs))
    return Figure(
        _SECTION, "100 B, from a send to a push consumer that waits, median", f"{mine:.2f} ms",
        f"RocketMQ {bench.version}", f"{other:.2f} ms", f"{mine / other:.2f}",
        f"under {_AIM_MS:g} ms", met(mine < _AIM_MS),
        "p99 {:.1f} ms, RocketMQ {:.1f} ms".format(*tails),
    )  # fmt: skip
