"""Reading through name servers: store processes by their endpoints, other brokers by pulls."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rmqstore_spark.broker.face import BrokerFace
from rmqstore_spark.datasource.partitions import PulledPartition, StorePartition
from rmqstore_spark.engine.config.store_config import StoreConfig
from rmqstore_spark.engine.store import StoreWriter
from tests.datasource.driving import Stream, batch_rows, plan_batch
from tests.face.broker import SMALL, Served, free_port, name_server, route
from tests.support.blocks import encoded_traffic
from tests.support.traffic import Traffic
from tests.support.waiting import eventually


@contextmanager
def registered(path: Path, servers: str, **settings: Any) -> Iterator[Served]:
    """A broker without an endpoint, as RocketMQ's are, when its topics are in the route."""
    config = StoreConfig(
        **{**SMALL, "listen_port": free_port(), "namesrv_addr": servers, **settings}
    )
    with StoreWriter.open(path, config) as store:
        store.create_topic("orders", write_queue_nums=3)
        put(store, 1000)
        face = BrokerFace(store)
        try:
            eventually(lambda: route(servers, "orders"))
            yield Served(store, face.address)
        finally:
            face.close()


def put(store: StoreWriter, count: int, seed: int = 1) -> None:
    for block in encoded_traffic(Traffic(count, topics={"orders": 3}, seed=seed)):
        assert store.put(block).ok
    store.flush()


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[str]:
    with name_server(tmp_path) as address:
        yield address


@pytest.fixture
def broker(tmp_path: Path, servers: str) -> Iterator[Served]:
    with registered(tmp_path / "store", servers) as found:
        yield found


def as_pulled(rows: list[dict[str, Any]], name: str = "broker-a") -> list[dict[str, Any]]:
    """Rows of the path, as they are called with the broker's name, queue by queue."""
    rows = [{**row, "brokerName": name} for row in rows]
    return sorted(rows, key=lambda row: (row["topic"], row["queueId"], row["queueOffset"]))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"tags": "TagA || TagB"},
        {"tags": '["TagA", "no such tag", "a||b"]'},
        {"startingOffsets": json.dumps({"orders": {"0": 7, "1": -2, "2": 100}})},
        {"endingOffsets": json.dumps({"orders": {"0": 7, "1": -1, "2": 100}})},
        {"maxRecordsPerPartition": 100},
    ],
)
def test_pulled_rows_are_those_of_the_path(
    broker: Served, servers: str, options: dict[str, Any]
) -> None:
    expected = batch_rows(broker.store.path, subscribe="orders", **options)
    found = batch_rows("", namesrvAddr=servers, subscribe="orders", **options)
    assert found == as_pulled(expected)
    assert found
