"""Streams into a group of stores that elects another leader meanwhile: exactly once."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.broker.broker import name_server, route
from tests.datasource.sink.test_sink_stream import (
    FILES,
    ROWS,
    TOPIC,
    Start,
    arriving,
    bodies,
    run_until_it_ends,
    source,
)
from tests.engine.group.stores import StoreGroup, bodies_in, group_of
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["arriving"]


@contextmanager
def leaders_killed(group: StoreGroup, most: int) -> Iterator[list[str]]:
    """Kill each leader that has committed a batch, and start it again; yields who was killed."""
    done = threading.Event()
    killed: list[str] = []

    def work() -> None:
        while not done.wait(0.02) and len(killed) < most:
            for store in group.stores.values():
                if store.stats().get("commits"):
                    store.kill()
                    killed.append(store.me)
                    group.leader()
                    store.start()
                    break

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield killed
    finally:
        done.set()
        thread.join()


@pytest.mark.fault
@pytest.mark.slow
def test_a_stream_follows_the_leader_and_each_row_is_there_once(
    spark: SparkSession, arriving: Path, tmp_path: Path, queries: Start
) -> None:
    with name_server(tmp_path) as servers, group_of(tmp_path, namesrvAddr=servers) as group:
        eventually(lambda: group.leader().send("first"))
        eventually(lambda: route(servers, TOPIC))

        def made() -> Any:
            stream = source(spark, arriving).writeStream.format("rmqstore")
            stream = stream.option("checkpointLocation", str(tmp_path / "checkpoint"))
            stream = stream.options(namesrvAddr=servers, brokerNames="orders", topic=TOPIC)
            return stream.option("requestTimeout", "20s").trigger(availableNow=True)

        with leaders_killed(group, 3) as killed:
            run_until_it_ends(queries, made, attempts=12)
        group.send("last")
        group.await_all()
        group.stop()
    assert len(killed) == 3
    for store in group.stores.values():
        found = Counter(text.encode() for text in bodies_in(store.store))
        rows = Counter({text: count for text, count in found.items() if text.startswith(b"row-")})
        assert rows == bodies(FILES * ROWS)
