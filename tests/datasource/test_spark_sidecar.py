"""A broker's store through a sidecar, and by a path that spares the page cache."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rmqstore_spark.engine import StoreConfig
from rmqstore_spark.server.stores.sidecar import Sidecar, StorePlace
from tests.datasource.conftest import rows_of
from tests.datasource.driving import Stream
from tests.support.processes.live_writer import LiveWriter
from tests.support.processes.serving import eventually, server_of
from tests.support.stores.pages import drop_pages, resident

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Golden = Callable[[str], Path]


@pytest.fixture
def live(tmp_path: Path) -> Iterator[LiveWriter]:
    writer = LiveWriter(tmp_path / "store", 3000)
    writer.write(1000)
    yield writer
    writer.kill()


@pytest.fixture
def endpoints(golden: Golden, live: LiveWriter) -> Iterator[dict[str, str]]:
    places = [
        StorePlace("live", str(golden("live") / "store")),
        StorePlace("written", str(live.path)),
    ]
    config = StoreConfig(listen_port=0)
    stores = Sidecar(places, config, spares_page_cache=True, max_read_rate=None).stores
    server = server_of(stores, config)
    yield {place.name: f"{server.endpoints[0]}#{place.name}" for place in places}
    server.close()


def ordered(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: (row["brokerName"], row["physicalOffset"]))


def test_a_batch_has_the_rows_of_the_path(
    spark: SparkSession, golden: Golden, on_disk: Path, endpoints: dict[str, str]
) -> None:
    path = shutil.copytree(golden("live") / "store", on_disk / "live" / "store")
    near = spark.read.format("rmqstore").option("includeSystemTopics", "true")
    far = spark.read.format("rmqstore").option("includeSystemTopics", "true")
    expected = ordered(rows_of(near.option("brokerNames", "live").load(str(path))))
    assert ordered(rows_of(far.option("endpoint", endpoints["live"]).load())) == expected
    assert expected
    (log,) = (path / "commitlog").iterdir()
    drop_pages(log)
    spared = near.option("pageCache", "spare").load(str(path))
    assert ordered(rows_of(spared)) == expected
    # Behind the last record, what the system read ahead can be left.
    assert resident(log, 0, expected[-1]["physicalOffset"]) < 0.1


def test_a_stream_follows_what_a_broker_writes(live: LiveWriter, endpoints: dict[str, str]) -> None:
    """Driven as Spark drives it, without a JVM."""
    stream = Stream(endpoints["written"], startingOffsets="earliest")
    first = [row for batch in stream.drain() for row in batch]
    assert len(first) == 1000
    live.write(500)

    def more() -> list[dict[str, Any]]:
        stream.clock.sleep(60)
        first.extend(row for batch in stream.drain() for row in batch)
        return first if len(first) >= 1500 else []

    rows = eventually(more, 120)
    assert len({(row["topic"], row["queueId"], row["queueOffset"]) for row in rows}) == 1500
