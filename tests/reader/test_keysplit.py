"""Messages with a key as a source of rows: just those that the queues hold."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rmqstore_spark.errors import (
    OptionError,
    SegmentExpiredError,
)
from rmqstore_spark.reader import Store
from rmqstore_spark.reader.options import KeySplit, LogSplit, QueueRange, ReadOptions
from rmqstore_spark.reader.plan import PlanLimits, plan_by_keys, read_split
from tests.support.stores.expected import expected_rows, queue_key
from tests.support.stores.golden import GOLDEN_NAMES
from tests.support.stores.keys import (
    IDENTITY,
    asked,
    identities,
    reopened,
    row_has_key,
)
from tests.support.stores.records import log_files

Golden = Callable[[str], Path]
OpenStore = Callable[[str], Store]
Copy = Callable[[str], Path]


def whole(store: Store) -> list[QueueRange]:
    return [QueueRange(q.topic, q.queue_id, q.min_offset, q.max_offset) for q in store.queues()]


@pytest.mark.parametrize("name", sorted({*GOLDEN_NAMES} - {"unclean-nocq", "boundary"}))
def test_rows_by_key_are_those_that_the_queues_hold(
    name: str, open_store: OpenStore, golden: Golden
) -> None:
    store, rows = open_store(name), expected_rows(golden(name))
    ranges = whole(store)
    last = {(r.topic, r.queue_id): r.end for r in ranges}
    rows = [r for r in rows if r["queueOffset"] < last[r["topic"], r["queueId"]]]
    for keys in key_sets(golden(name), rows):
        options = ReadOptions(columns=IDENTITY.columns, keys=keys)
        splits = plan_by_keys(store, ranges)
        assert [type(split) for split in splits] == [KeySplit]
        batches = [b for split in splits for b in read_split(store, split, options)]
        found = identities(batches)
        assert sorted(found) == [queue_key(r) for r in rows if row_has_key(r, keys)]


def key_sets(folder: Path, rows: list[dict[str, Any]]) -> list[frozenset[str]]:
    """Some keys: those that RocketMQ was asked for, some KEYS and some UNIQ_KEYs."""
    keys = sorted({key for r in rows for key in r["keys"] or ()})
    uniq = sorted({r["uniqKey"] for r in rows if r["uniqKey"]})
    some = keys[:: 1 + len(keys) // 40] + uniq[:: 1 + len(uniq) // 40]
    reports = frozenset(key for _, key in asked(folder))
    return [reports, frozenset(some), frozenset(some[:1]), frozenset({"no such key"})]


@pytest.mark.parametrize("name", ["basic", "lmq", "dledger", "tiny"])
@pytest.mark.parametrize("lost", ["none", "some", "all"])
def test_ranges_without_an_index_are_read_along_the_log(
    copy: Copy, name: str, lost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rmqstore_spark.reader.plan._LONG", 1)
    folder = copy(name)
    rows = expected_rows(folder)
    files = sorted((folder / "store" / "index").iterdir())
    for path in {"none": [], "some": files[1::2] or files, "all": files}[lost]:
        path.unlink()
    with reopened(folder) as store:
        ranges = [
            QueueRange(r.topic, r.queue_id, r.start + r.count // 4, r.end - r.count // 4)
            for r in whole(store)
        ]
        span = {(r.topic, r.queue_id): r for r in ranges}
        splits = plan_by_keys(store, ranges, PlanLimits(max_bytes=100_000))
        assert lost != "all" or {type(split) for split in splits} == {LogSplit}
        for keys in key_sets(folder, rows):
            options = ReadOptions(columns=IDENTITY.columns, keys=keys)
            batches = [b for split in splits for b in read_split(store, split, options)]
            wanted = [
                queue_key(r)
                for r in rows
                if row_has_key(r, keys)
                and span[r["topic"], r["queueId"]].start <= r["queueOffset"]
                and r["queueOffset"] < span[r["topic"], r["queueId"]].end
            ]
            assert sorted(identities(batches)) == wanted


@pytest.mark.parametrize("side", ["first", "last", "all"])
@pytest.mark.parametrize("name", ["basic", "lmq", "dledger", "tiny"])
def test_a_range_whose_entries_at_an_end_are_damaged_is_looked_for_in_all_of_the_log(
    copy: Copy, name: str, side: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for constant, value in {"_LONG": 1, "_SAMPLE": 2, "_LEAST_SAMPLE": 2}.items():
        monkeypatch.setattr(f"rmqstore_spark.reader.plan.{constant}", value)
    folder = copy(name)
    rows = expected_rows(folder)
    for path in sorted((folder / "store" / "index").iterdir())[1::2]:
        path.unlink()
    with reopened(folder) as store:
        ranges = whole(store)
        damaged = set()
        for queue, wanted in zip(store.queues(), ranges, strict=True):
            slots = range(wanted.start, wanted.end)
            for slot in {"first": slots[:3], "last": slots[-3:], "all": slots}[side]:
                segment = queue.segments.locate(slot * 20)
                with open(segment.path, "r+b") as file:
                    file.seek(slot * 20 - segment.start + 8)
                    file.write((0x7FFFFFFF).to_bytes(4, "big"))
                damaged.add((wanted.topic, wanted.queue_id, slot))
    last = {(r.topic, r.queue_id): r.end for r in ranges}
    rows = [r for r in rows if r["queueOffset"] < last[r["topic"], r["queueId"]]]
    with reopened(folder) as store:
        splits = plan_by_keys(store, ranges, PlanLimits(max_bytes=100_000))
        for keys in key_sets(folder, rows):
            options = ReadOptions(columns=IDENTITY.columns, keys=keys, mode="DROPMALFORMED")
            batches = [b for split in splits for b in read_split(store, split, options)]
            wanted_rows = [queue_key(r) for r in rows if row_has_key(r, keys)]
            assert sorted(identities(batches)) == [r for r in wanted_rows if r not in damaged]


def test_no_ranges_and_no_keys(golden: Golden) -> None:
    with Store.open(golden("tiny") / "store") as store:
        assert plan_by_keys(store, []) == []
        assert plan_by_keys(store, [QueueRange("T", 0, 5, 5)]) == []
        (split,) = plan_by_keys(store, whole(store))
        with pytest.raises(OptionError, match="No keys"):
            list(read_split(store, split, ReadOptions()))


def test_rows_by_key_take_tags_and_columns(golden: Golden) -> None:
    rows = [r for r in expected_rows(golden("basic")) if r["tags"] and r["keys"]]
    keys, tags = frozenset(rows[0]["keys"]), frozenset({rows[0]["tags"]})
    options = ReadOptions(columns=("body", "physicalOffset"), keys=keys, tags=tags)
    with Store.open(golden("basic") / "store") as store:
        (split,) = plan_by_keys(store, whole(store))
        found = [r for b in read_split(store, split, options) for r in b.to_pylist()]
    mine = [r for r in rows if row_has_key(r, keys) and r["tags"] in tags]
    assert found == [
        {name: r[name] for name in options.columns}
        for r in sorted(mine, key=lambda row: row["physicalOffset"])
    ]


def test_ranges_that_expired_since_they_were_planned(
    copy: Copy, caplog: pytest.LogCaptureFixture
) -> None:
    folder = copy("basic")
    rows = expected_rows(folder)
    keys = key_sets(folder, rows)[1]
    files = [path for _, path, _ in log_files(folder)]
    with reopened(folder) as store:
        (split,) = plan_by_keys(store, whole(store))
    for path in files[:4]:
        path.unlink()
    for opened_before in (False, True):
        with reopened(folder) as store:
            with pytest.raises(SegmentExpiredError):
                list(read_split(store, split, ReadOptions(keys=keys)))
            lenient = ReadOptions(columns=IDENTITY.columns, keys=keys, fail_on_data_loss=False)
            if opened_before:
                files[4].unlink()
            caplog.clear()
            found = identities(read_split(store, split, lenient))
        begin = int(files[4 + opened_before].name)
        assert sorted(found) == [
            queue_key(r) for r in rows if row_has_key(r, keys) and r["physicalOffset"] >= begin
        ]
        assert "skipped" in caplog.text


def test_queue_reads_take_uniq_keys_too(golden: Golden) -> None:
    rows = [r for r in expected_rows(golden("basic")) if r["keys"] and r["uniqKey"]]
    for keys in (
        frozenset({rows[3]["uniqKey"]}),
        frozenset({rows[3]["uniqKey"], *rows[9]["keys"]}),
    ):
        options = ReadOptions(columns=IDENTITY.columns, keys=keys)
        with Store.open(golden("basic") / "store") as store:
            found = [
                place
                for r in whole(store)
                for place in identities(store.read(r.topic, r.queue_id, options=options))
            ]
        assert sorted(found) == [
            queue_key(r) for r in expected_rows(golden("basic")) if row_has_key(r, keys)
        ]


def test_light_queues_alone(golden: Golden) -> None:
    rows = [r for r in expected_rows(golden("lmq")) if r["topic"] != "LmqParent"]
    assert len({r["topic"] for r in rows}) > 2
    keys = frozenset(key for r in rows[::3] for key in r["keys"] or ())
    options = ReadOptions(columns=IDENTITY.columns, keys=keys)
    with Store.open(golden("lmq") / "store") as store:
        (split,) = plan_by_keys(store, [r for r in whole(store) if r.topic != "LmqParent"])
        found = identities(read_split(store, split, options))
    assert sorted(found) == [queue_key(r) for r in rows if row_has_key(r, keys)]


def test_expiry_while_keys_are_looked_for_is_an_error(copy: Copy) -> None:
    folder = copy("basic")
    keys = key_sets(folder, expected_rows(folder))[1]
    with reopened(folder) as store:
        (split,) = plan_by_keys(store, whole(store))
    with reopened(folder) as store:
        # The log is listed already: that a file went is seen only when it is opened.
        next(path for _, path, _ in log_files(folder)).unlink()
        with pytest.raises(SegmentExpiredError):
            list(read_split(store, split, ReadOptions(keys=keys)))
