"""Every golden store, read as RocketMQ reports it: local and on another file system."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rmqstore_spark.layout.record.columns import COLUMNS
from rmqstore_spark.reader import Store
from rmqstore_spark.reader.options import QueueRange, ReadOptions
from rmqstore_spark.reader.plan import PlanLimits, plan, read_split
from tests.support.stores.expected import LOST_ENTRIES, backed_rows, log_rows, queue_key
from tests.support.stores.golden import GOLDEN_NAMES, load_queues

Golden = Callable[[str], Path]


def rows_of(batches: Iterable[pa.RecordBatch]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for batch in batches:
        batch.validate(full=True)
        assert batch.schema.names == list(COLUMNS)
        for row in batch.to_pylist():
            row["properties"] = dict(row["properties"])
            assert row.pop("brokerName") == "b"
            rows.append(row)
    return rows


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_queues_offsets_and_messages(
    name: str, open_store: Callable[[str], Store], golden: Golden
) -> None:
    store = open_store(name)
    file = "queues.settled.json" if name == "trimmed-raw" else "queues.json"
    reports = load_queues(golden(name), file).queues
    expected = backed_rows(golden(name))
    for (topic, queue_id), report in reports.items():
        if report.max_offset == 0 or not store.has_queues:
            continue
        queue = store.queue(topic, queue_id)
        if (topic, queue_id) == LOST_ENTRIES.get(name, ())[:2]:
            assert queue.max_offset == LOST_ENTRIES[name][2]
            continue
        assert queue.max_offset == report.max_offset
        assert queue.min_offset == (report.min_offset if report.readable else report.max_offset)
        assert queue.max_offset - queue.min_offset == report.readable
    got = [
        row for queue in store.queues() for row in rows_of(store.read(queue.topic, queue.queue_id))
    ]
    assert sorted(got, key=queue_key) == expected


@pytest.mark.parametrize("by", ["queue", "commitlog", "auto"])
@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_every_plan_gives_the_same_rows(
    name: str, by: Any, open_store: Callable[[str], Store], golden: Golden
) -> None:
    store = open_store(name)
    ranges = [QueueRange(q.topic, q.queue_id, q.min_offset, q.max_offset) for q in store.queues()]
    splits = plan(store, ranges, PlanLimits(max_bytes=100_000), by)
    expected = backed_rows(golden(name))
    assert len(splits) >= (2 if len(expected) > 500 else 0)
    got = []
    for split in splits:
        rows = rows_of(read_split(store, split, ReadOptions()))
        last: dict[tuple[str, int], int] = {}
        for row in rows:
            queue = (row["topic"], row["queueId"])
            assert row["queueOffset"] > last.get(queue, -1)
            last[queue] = row["queueOffset"]
        got += rows
    assert sorted(got, key=queue_key) == expected


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_a_scan_gives_the_whole_log(
    name: str, open_store: Callable[[str], Store], golden: Golden
) -> None:
    assert rows_of(open_store(name).scan()) == log_rows(golden(name))


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_the_first_offset_at_a_time(
    name: str, open_store: Callable[[str], Store], golden: Golden
) -> None:
    store = open_store(name)
    times: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for row in backed_rows(golden(name)):
        stored = round(row["storeTimestamp"].timestamp() * 1000)
        times.setdefault((row["topic"], row["queueId"]), []).append((row["queueOffset"], stored))
    for (topic, queue_id), offsets in times.items():
        queue = store.queue(topic, queue_id)
        asked = {0, 1 << 62} | {
            t + d for _, t in offsets[:: max(1, len(offsets) // 5)] for d in (-1, 0, 1)
        }
        for time in asked:
            at_or_after = [offset for offset, stored in offsets if stored >= time]
            assert queue.offset_at(time) == (at_or_after[0] if at_or_after else None)


def test_topics_take_their_settings_from_topics_json(open_store: Callable[[str], Store]) -> None:
    topics = {topic.name: topic for topic in open_store("live").topics()}
    live = topics["LiveTopic"]
    assert (live.read_queue_nums, live.write_queue_nums, live.perm, live.order) == (4, 4, 6, False)
    assert live.queue_ids == (0, 1, 2, 3)
    assert not live.is_system
    assert topics["%RETRY%cg_live"].is_system
