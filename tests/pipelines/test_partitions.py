"""Rows by topic and date."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from rmqstore_spark.layout.record.columns import TIMESTAMP
from rmqstore_spark.pipelines.parquet.files import Partition, split_by_partition

MICROS = st.integers(-62_135_596_800_000_000, 253_402_300_799_999_999)
TOPICS = st.sampled_from(["a", "b", "%RETRY%a", "主题"])
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)


def batch_of(rows: list[tuple[str, int | None]]) -> pa.RecordBatch:
    topics, micros = zip(*rows, strict=True) if rows else ((), ())
    return pa.RecordBatch.from_pydict(
        {
            "number": pa.array(range(len(rows)), pa.int64()),
            "topic": pa.array(topics, pa.string()),
            "storeTimestamp": pa.array(micros, pa.int64()).cast(TIMESTAMP),
        }
    )


def date_of(micros: int | None) -> str:
    if micros is None:
        return "__HIVE_DEFAULT_PARTITION__"
    return (EPOCH + dt.timedelta(microseconds=micros)).date().isoformat()


@given(st.lists(st.tuples(TOPICS, st.one_of(st.none(), MICROS)), max_size=60))
def test_each_row_goes_to_its_partition_in_order(rows: list[tuple[str, int | None]]) -> None:
    found: dict[str, list[int]] = {}
    for partition, part in split_by_partition(batch_of(rows)):
        assert partition.folder not in found
        found[partition.folder] = part["number"].to_pylist()
        assert set(part["topic"].to_pylist()) == {partition.topic}
    expected: dict[str, list[int]] = {}
    for number, (topic, micros) in enumerate(rows):
        folder = f"topic={topic.replace('%', '%25')}/date={date_of(micros)}"
        expected.setdefault(folder, []).append(number)
    assert found == expected


def test_one_partition_is_not_copied() -> None:
    batch = batch_of([("a", 0), ("a", 1)])
    ((_, part),) = split_by_partition(batch)
    assert part is batch


def test_a_topic_that_hive_would_take_for_null() -> None:
    folder = Partition("__HIVE_DEFAULT_PARTITION__", None).folder
    assert folder == "topic=%5F%5FHIVE%5FDEFAULT%5FPARTITION%5F%5F/date=__HIVE_DEFAULT_PARTITION__"


def test_columns_of_a_part_are_not_kept_alive_by_another() -> None:
    rows: Any = [("ab"[number % 2], 0) for number in range(10_000)]
    parts = [part for _, part in split_by_partition(batch_of(rows))]
    assert [part.num_rows for part in parts] == [5_000, 5_000]
    for part in parts:
        assert part.get_total_buffer_size() < 1.2 * part.nbytes
