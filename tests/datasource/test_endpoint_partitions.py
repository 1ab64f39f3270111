"""A store is cut into the same partitions whether it is read by its path or through its process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict, InputPartition

from rmqstore_spark.datasource.schema import full_schema
from rmqstore_spark.datasource.source import RmqStoreDataSource
from rmqstore_spark.datasource.sources.store import StorePartition
from rmqstore_spark.datasource.spark_api import ReadAllAvailable
from rmqstore_spark.reader.options import Split
from tests.support.messages.blocks import encoded_traffic
from tests.support.messages.traffic import Traffic
from tests.support.processes.serving import Served, served


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A store of several log files that is open for writing."""
    path = tmp_path_factory.mktemp("served") / "ours" / "store"
    topics = {"orders": 5, "returns": 2}
    with served(path, broker_name="ours") as found:
        for name, queues in topics.items():
            found.store.create_topic(name, write_queue_nums=queues)
        for block in encoded_traffic(Traffic(10_000, topics=topics, seed=1)):
            assert found.store.put(block).ok
        found.store.flush()
        yield found


def source(**options: str) -> RmqStoreDataSource:
    given = CaseInsensitiveDict()
    given.update(options)
    return RmqStoreDataSource(given)


def splits_of(partitions: Any) -> list[tuple[Split, ...]]:
    return [planned(partition).splits for partition in partitions]


def planned(partition: InputPartition) -> StorePartition:
    assert isinstance(partition, StorePartition)
    return partition


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"planBy": "queue"},
        {"planBy": "commitlog", "minPartitions": "5"},
        {"minPartitions": "9"},
        {"maxBytesPerPartition": "100k"},
        {"maxRecordsPerPartition": "777"},
        {"subscribe": "returns", "maxBytesPerPartition": "100k"},
        {"keys": "order-0000000000"},
    ],
    ids=str,
)
def test_a_batch(here: Served, options: dict[str, str]) -> None:
    by_path, by_endpoint = (
        splits_of(source(**place, **options).reader(full_schema()).partitions())
        for place in ({"path": str(here.store.path)}, {"endpoint": here.endpoint})
    )
    assert by_endpoint == by_path
    if "minPartitions" in options:
        assert len(by_path) == int(options["minPartitions"])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"minPartitions": "9"},
        {"maxBytesPerPartition": "100k"},
        {"planBy": "queue"},
        {"planBy": "commitlog", "minPartitions": "5"},
    ],
    ids=str,
)
def test_a_stream(here: Served, options: dict[str, str]) -> None:
    def splits(**place: str) -> list[tuple[Split, ...]]:
        made = source(**place, **options, startingOffsets="earliest")
        reader: Any = made.streamReader(full_schema())
        try:
            start = reader.initialOffset()
            return splits_of(
                reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))
            )
        finally:
            reader.stop()

    by_path = splits(path=str(here.store.path), brokerNames="ours")
    assert splits(endpoint=here.endpoint) == by_path
    assert by_path
