"""Decode in one thread, out of the page cache, against RocketMQ and against reading alone."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from benchmarks.means.child import in_child
from benchmarks.means.stores import BODY_SIZES, Shape, Stores
from benchmarks.report.figures import Figure
from rmqstore_spark.layout.record.columns import COLUMNS
from rmqstore_spark.reader import Store
from rmqstore_spark.reader.options import QueueRange, ReadOptions
from rmqstore_spark.reader.plan import plan, read_split

__all__ = [
    "column_figures",
    "decode_figures",
    "measure",
    "measure_raw",
    "plan_figures",
    "tag_figures",
]

ROCKETMQ: Final = {100: (0.7e6, 1.2e6), 1024: (0.36e6, 0.73e6), 4096: (0.27e6, 0.5e6)}
"""Messages a second by body size: RocketMQ 4.9.8 getMessage+decode on a 2-core machine."""

THREE: Final = ("topic", "queueOffset", "body")
_PASSES: Final = 7
_OF_PREADV: Final = 0.5
_COLUMN_PASSES: Final = 5
_CHEAPEST: Final = "storeSize"
_BATCH_ROWS: Final = (2_500, 5_000, 20_000, 40_000)
_PREADV: Final = 1 << 20


def measure(
    store: str,
    columns: Sequence[str] | None,
    by: Literal["queue", "commitlog"],
    passes: int,
    tags: Sequence[str] | None = None,
    rows: int = ReadOptions.batch_rows,
) -> list[float]:
    """Nanoseconds a message of the store (not: of the result), once a pass.

    Args:
        columns: None for all.
        tags: only messages with one of these.
        rows: the most of a batch.
    """
    options = ReadOptions(
        columns=tuple(COLUMNS if columns is None else columns),
        tags=None if tags is None else frozenset(tags),
        batch_rows=rows,
    )
    with Store.open(store) as opened:
        queues = opened.queues()
        ranges = [QueueRange(q.topic, q.queue_id, q.min_offset, q.max_offset) for q in queues]
        splits = plan(opened, ranges, by=by)
        total = sum(wanted.count for wanted in ranges)
        times = []
        for _ in range(passes + 1):
            began = time.perf_counter()
            rows = sum(b.num_rows for split in splits for b in read_split(opened, split, options))
            times.append((time.perf_counter() - began) / total * 1e9)
            if tags is None and rows != total:
                raise AssertionError(f"{rows} rows came out of {total}")
    return times[1:]  # the first one warms up


def measure_raw(store: str, passes: int) -> list[float]:
    """Nanoseconds a message for reading the log's bytes and doing nothing with them."""
    with Store.open(store) as opened:
        total = sum(queue.max_offset for queue in opened.queues())
        end = opened.dispatched_end()
        segments = [(s.segment.path, min(s.segment.size, end - s.start)) for s in
                    opened.log.segments()]  # fmt: skip
    buffer = np.empty(_PREADV, np.uint8)
    times = []
    for _ in range(passes + 1):
        began = time.perf_counter()
        for path, size in segments:
            descriptor = os.open(path, os.O_RDONLY)
            for at in range(0, size, _PREADV):
                os.preadv(descriptor, [buffer[: size - at].data], at)
            os.close(descriptor)
        times.append((time.perf_counter() - began) / total * 1e9)
    return times[1:]


@dataclass(frozen=True)
class _Case:
    queues: int
    by: str
    plain: bool


_CASES: Final = (
    _Case(1, "queue", False),
    _Case(64, "commitlog", False),
    _Case(64, "queue", False),
    _Case(1, "queue", True),
)


def decode_figures(stores: Stores) -> Iterator[Figure]:
    """All columns, and three, at each body size; the compiled and the plain kernel."""
    for body in BODY_SIZES:
        raw: dict[int, float] = {}
        for case in _CASES:
            store = str(stores(Shape(body, case.queues)))
            if case.queues not in raw:
                found = in_child(f"{__name__}:measure_raw", store=store, passes=_PASSES)
                raw[case.queues] = statistics.median(found)
            for columns, aim in ((None, 2), (THREE, 5)):
                times = in_child(
                    f"{__name__}:measure", plain=case.plain, store=store, columns=columns,
                    by=case.by, passes=2 if case.plain else _PASSES,
                )  # fmt: skip
                time = statistics.median(times)
                yield _figure(body, case, columns, aim, time, raw[case.queues])
                if columns == THREE and case.queues == 1 and not case.plain:
                    yield _against_preadv(body, time, raw[1])


def _figure(
    body: int, case: _Case, columns: Sequence[str] | None, aim: int, time: float, raw: float
) -> Figure:
    low, high = ROCKETMQ[body]
    rate = 1e9 / time
    # The aims are those of the compiled kernel, for a queue as for a store in one pass.
    aimed = not case.plain and not (case.queues > 1 and case.by == "queue")
    met = "yes" if rate >= aim * high else "at the lower end" if rate >= aim * low else "no"
    what = "all columns" if columns is None else ", ".join(columns)
    size = f"{body} B" if body < 1024 else f"{body // 1024} KiB"
    way = "1 queue" if case.queues == 1 else f"{case.queues} queues by {case.by}"
    return Figure(
        f"Decode, bodies of {size}",
        f"{what}; {way}{'; without the compiled kernel' if case.plain else ''}",
        f"{rate / 1e6:.2f} M/s, {time:,.0f} ns",
        "RocketMQ; preadv",
        f"{low / 1e6:.2f}-{high / 1e6:.2f} M/s; {raw:,.0f} ns",
        f"{rate / high:.1f}-{rate / low:.1f}; {time / raw:.1f}",
        f"{aim}" if aimed else "",
        met if aimed else "",
    )


def _against_preadv(body: int, time: float, raw: float) -> Figure:
    # Only large bodies have an aim: with small ones, the fields of a record cost more than bytes.
    aimed = body == 4096
    met = "yes" if raw / time >= _OF_PREADV else "no"
    return Figure(
        f"Decode, bodies of {body} B" if body < 1024 else f"Decode, bodies of {body // 1024} KiB",
        f"{', '.join(THREE)}; 1 queue, as a part of preadv's rate",
        f"{1e3 / time:.2f} M/s, {time:,.0f} ns",
        "preadv",
        f"{1e3 / raw:.2f} M/s, {raw:,.0f} ns",
        f"{raw / time:.2f}",
        f"{_OF_PREADV}" if aimed else "",
        met if aimed else "",
    )


def plan_figures(stores: Stores) -> Iterator[Figure]:
    """One pass over the log against one queue after the other, over 64 interleaved queues."""
    for body in BODY_SIZES:
        store = str(stores(Shape(body, 64)))
        for columns in (None, THREE):
            times = {
                by: statistics.median(
                    in_child(
                        f"{__name__}:measure", store=store, columns=columns, by=by, passes=3,
                    )
                )
                for by in ("commitlog", "queue")
            }  # fmt: skip
            ratio = times["queue"] / times["commitlog"]
            yield Figure(
                "planBy, without Spark, out of the page cache",
                f"commitlog, {body} B, {'all columns' if columns is None else ', '.join(columns)}",
                f"{times['commitlog']:,.0f} ns",
                "queue",
                f"{times['queue']:,.0f} ns",
                f"{ratio:.1f}",
                "3",
                "yes" if ratio >= 3 else "no",
            )


def column_figures(stores: Stores) -> Iterator[Figure]:
    """What each column adds to the cheapest one, and all of them in batches of other sizes."""
    for body in BODY_SIZES[:2]:
        section = f"Decode, what a column costs, 64 queues by commitlog, bodies of {body} B"
        store = str(stores(Shape(body, 64)))
        alone = _pass_ns(store, (_CHEAPEST,))
        yield Figure(section, f"{_CHEAPEST} alone", f"{alone:,.0f} ns")
        for name in COLUMNS:
            if name != _CHEAPEST:
                more = _pass_ns(store, (_CHEAPEST, name)) - alone
                yield Figure(section, f"{name} as well", f"{more:+,.0f} ns")
        whole = _pass_ns(store, None)
        for rows in _BATCH_ROWS:
            time = _pass_ns(store, None, rows)
            yield Figure(
                section, f"all columns, batches of {rows:,} rows", f"{time:,.0f} ns",
                f"of {ReadOptions.batch_rows:,} rows", f"{whole:,.0f} ns", f"{time / whole:.2f}",
            )  # fmt: skip


def _pass_ns(
    store: str, columns: Sequence[str] | None, rows: int = ReadOptions.batch_rows
) -> float:
    times = in_child(
        f"{__name__}:measure", store=store, columns=columns, by="commitlog",
        passes=_COLUMN_PASSES, rows=rows,
    )  # fmt: skip
    return float(statistics.median(times))


def tag_figures(stores: Stores) -> Iterator[Figure]:
    """Messages with a tag that one in a hundred has, against reading all."""
    for body in BODY_SIZES:
        store = str(stores(Shape(body, 64)))
        few, full = (
            statistics.median(
                in_child(
                    f"{__name__}:measure", store=store, columns=None, by="commitlog",
                    passes=3, tags=tags,
                )
            )
            for tags in (["Tag07"], None)
        )  # fmt: skip
        yield Figure(
            "tags that 1 % have, without Spark",
            f"{body} B, all columns, a message of the store",
            f"{few:,.1f} ns",
            "no tags",
            f"{full:,.0f} ns",
            f"{full / few:.0f}",
            "10",
            "yes" if full / few >= 10 else "no",
        )
