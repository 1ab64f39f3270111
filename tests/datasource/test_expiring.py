"""Queries on a store whose segments expire, and on a store and its archive together."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rmqstore_spark.errors import DataLossError, OptionError
from tests.datasource.driving import Stream, batch_rows, plan_batch, read_all, rows_in
from tests.support.processes.serving import Served, block_of, eventually, served

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LATER = 1 << 60
COUNT = 400


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return tmp_path / "archive"


@pytest.fixture
def here(tmp_path: Path, archive: Path) -> Iterator[Served]:
    settings = {
        "archive_to": str(archive), "mapped_file_size_commit_log": 16 << 10,
        "mapped_file_size_consume_queue": 400, "broker_name": "ours",
        "delete_commit_log_files_interval": 0,
    }  # fmt: skip
    with served(tmp_path / "store", **settings) as found:
        put(found, 0, COUNT)
        yield found


def put(here: Served, first: int, last: int) -> None:
    for at in range(first, last, 50):
        bodies = [f"{number}".encode().ljust(200, b".") for number in range(at, at + 50)]
        assert here.store.put(block_of(bodies, queue_ids=[n % 2 for n in range(50)])).ok
    here.store.flush()


def expire(here: Served) -> int:
    """Remove all segments but the last one; returns how many messages the store still has."""
    here.store.expire(LATER)
    eventually(lambda: not here.store.expirable(LATER).is_working)
    assert not here.store.expirable(LATER).remark
    return sum(end - first for first, end in here.store.stats()["queues"]["orders"].values())


def numbers(rows: list[dict[str, Any]]) -> list[int]:
    return sorted(int(bytes(row["body"]).rstrip(b".")) for row in rows)


@pytest.mark.parametrize("plan_by", ["queue", "commitlog"])
def test_messages_expire_in_the_process_between_plan_and_read(here: Served, plan_by: str) -> None:
    options: dict[str, Any] = {"endpoint": here.endpoint, "planBy": plan_by}
    failing = plan_batch("", **options)
    skipping = plan_batch("", failOnDataLoss=False, **options)
    left = expire(here)
    assert 0 < left < COUNT
    with pytest.raises(DataLossError, match=r"expired|gone|begins at"):
        list(read_all(*failing))
    assert numbers(rows_in(read_all(*skipping))) == list(range(COUNT - left, COUNT))


@pytest.mark.parametrize("plan_by", ["queue", "commitlog"])
def test_store_and_archive_are_one_store(here: Served, archive: Path, plan_by: str) -> None:
    left = expire(here)
    live = here.store.path
    options: dict[str, Any] = {"planBy": plan_by, "maxBytesPerPartition": "16k"}
    for path in (f"{live},{archive}", f"{archive},{live}"):
        rows = batch_rows(path, **options)
        assert numbers(rows) == list(range(COUNT))
        assert {row["brokerName"] for row in rows} == {Path(live).parent.name}
        places = sorted((row["queueId"], row["queueOffset"]) for row in rows)
        assert places == [(queue, slot) for queue in (0, 1) for slot in range(COUNT // 2)]
    named = batch_rows(f"{live},{archive}", brokerNames="ours", **options)
    assert {row["brokerName"] for row in named} == {"ours"}
    assert numbers(batch_rows(archive, **options)) == list(range(COUNT - left))
    with pytest.raises(OptionError, match="brokerNames has 2 names for 1 stores"):
        batch_rows(f"{live},{archive}", brokerNames="a,b")


def test_segments_move_while_a_query_reads_them(here: Served, archive: Path) -> None:
    put(here, COUNT, 2 * COUNT)
    expire(here)
    put(here, 2 * COUNT, 3 * COUNT)
    reader, parts = plan_batch(f"{here.store.path},{archive}", maxBytesPerPartition="16k")
    assert len(parts) > 4
    rows = rows_in(read_all(reader, parts[:2]))
    expire(here)
    rows += rows_in(read_all(reader, parts[2:]))
    assert numbers(rows) == list(range(3 * COUNT))


def test_a_stream_goes_on_from_the_archive_into_the_store(here: Served, archive: Path) -> None:
    path = f"{here.store.path},{archive}"
    expire(here)
    stream = Stream(path, maxOffsetsPerTrigger=90, startingOffsets="earliest")
    rows = stream.next_batch() or []
    put(here, COUNT, 2 * COUNT)
    expire(here)
    again = Stream(path, stream.log, maxOffsetsPerTrigger=90)
    for batch in again.drain():
        rows += batch
    assert numbers(rows) == list(range(2 * COUNT))


def test_an_archive_of_another_store_is_another_store(
    here: Served, archive: Path, tmp_path: Path
) -> None:
    expire(here)
    with served(tmp_path / "other") as other:
        assert other.store.put(block_of([b"1000"])).ok
        other.store.flush()
        rows = batch_rows(f"{other.store.path},{archive}")
    assert {row["brokerName"] for row in rows} == {"other", "archive"}


def test_spark_reads_both(spark: SparkSession, here: Served, archive: Path) -> None:
    expire(here)
    frame = spark.read.format("rmqstore").option("path", f"{here.store.path},{archive}").load()
    places = [tuple(row) for row in frame.select("queueId", "queueOffset").collect()]
    assert sorted(places) == [(queue, slot) for queue in (0, 1) for slot in range(COUNT // 2)]


def test_a_stream_lets_go_of_files_that_expire(here: Served) -> None:
    stream = Stream(here.store.path, maxOffsetsPerTrigger=50, startingOffsets="earliest")
    ends = [stream.latest(stream.initial())]
    while (end := stream.latest(ends[-1])) != ends[-1]:
        ends.append(end)
    assert len(ends) == COUNT // 50
    expire(here)
    assert segments_open(here, " (deleted)")
    stream.clock.now += 60
    put(here, COUNT, COUNT + 50)
    assert stream.latest(end) != end
    assert segments_open(here, "")
    assert not segments_open(here, " (deleted)")


def segments_open(here: Served, suffix: str) -> list[str]:
    """The segments that are open in this process, with what the system adds to those removed."""
    folder = f"{here.store.path}/commitlog/"
    links = [os.readlink(link) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return [link for link in links if link.startswith(folder) and link.endswith(suffix)]
