"""Stores of many queues at an endpoint: requests do not grow with the queues one by one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rmqstore_spark.cli.app import app
from rmqstore_spark.client.connection import Connection
from rmqstore_spark.datasource.options.parsing import parse_options
from rmqstore_spark.datasource.stream.followed import FollowedSources
from rmqstore_spark.reader import Store
from tests.support.messages.blocks import encoded_traffic
from tests.support.messages.traffic import Traffic
from tests.support.processes.serving import Served, served

TOPICS, QUEUES = 60, 4


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Served]:
    topics = {f"topic-{number}": QUEUES for number in range(TOPICS)}
    with served(tmp_path / "store") as found:
        for topic, count in topics.items():
            found.store.create_topic(topic, write_queue_nums=count)
        for block in encoded_traffic(Traffic(10 * TOPICS * QUEUES, topics=topics, body_size=10)):
            assert found.store.put(block).ok
        found.store.flush()
        yield found


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Return how many requests were made since the last call."""
    exchange = Connection.exchange
    made = [0]

    def counted(*args: Any, **named: Any) -> Any:
        made[0] += 1
        return exchange(*args, **named)

    def since() -> int:
        count, made[0] = made[0], 0
        return count

    monkeypatch.setattr(Connection, "exchange", counted)
    return since


@pytest.mark.parametrize(
    "command",
    ["topics --json", "info --json", "offsets", "read --json -n 1", "tail --json", "groups --json"],
)
def test_a_command(command: str, here: Served, requests: Callable[[], int]) -> None:
    ended = CliRunner().invoke(app, [*command.split(), here.endpoint])
    assert ended.exit_code == 0, ended.output
    assert 0 < requests() < TOPICS


def test_a_stream(here: Served, requests: Callable[[], int]) -> None:
    options = parse_options({"endpoint": here.endpoint}, streaming=True)
    sources = FollowedSources(options, time.monotonic)
    try:
        assert len(sources.queues) == TOPICS * QUEUES
        assert 0 < requests() < TOPICS
        (watched,) = [source.watched for source in sources.opened]
        for relist in (False, True):
            assert not watched.check(relist=relist)
            assert 0 < requests() < TOPICS
        # The search for the ends of the queues that grew is of all of them together.
        topics = {f"topic-{number}": QUEUES for number in range(TOPICS)}
        before = {key: chosen.queue.max_offset for key, chosen in sources.queues.items()}
        for block in encoded_traffic(Traffic(5 * TOPICS * QUEUES, topics=topics, body_size=10)):
            assert here.store.put(block).ok
        here.store.flush()
        requests()
        assert watched.check()
        assert 0 < requests() < TOPICS
        ends = {key: chosen.queue.max_offset for key, chosen in sources.queues.items()}
        assert ends == {key: end + 5 for key, end in before.items()}
    finally:
        sources.close()


def test_a_store_that_is_listed_again(here: Served, requests: Callable[[], int]) -> None:
    with Store.open(here.endpoint) as store:
        before = {queue.max_offset for queue in store.queues()}
        requests()
        store.refresh()
        assert {queue.max_offset for queue in store.queues()} == before
        assert store.dispatched_end() > 0
        assert 0 < requests() < TOPICS
