"""Which topics clients may write to: every way into a store gives the same answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rmqstore_spark.client import StoreClient
from rmqstore_spark.datasource.options.parsing import parse_sink_options
from rmqstore_spark.errors import RmqStoreError
from tests.cli.processes import run
from tests.support.processes.serving import Served, block_of, served

CLIENTS = ["orders", "%RETRY%group", "%DLQ%group", "%LMQ%light"]
STORES_OWN = [
    "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "rmq_sys_RMQSTORE_COMMIT", "TBW102",
    "Cluster_REPLY_TOPIC",
]  # fmt: skip
Way = Callable[[Served, StoreClient, str], None]


def opens(_: Served, client: StoreClient, topic: str) -> None:
    client.open([topic])


def creates(_: Served, client: StoreClient, topic: str) -> None:
    client.create_topic(topic)


def deletes(here: Served, client: StoreClient, topic: str) -> None:
    if topic in CLIENTS:
        here.store.create_topic(topic)
    client.delete_topic(topic)


def puts(_: Served, client: StoreClient, topic: str) -> None:
    with client.put_stream() as stream:
        stream.send(block_of([b"a"], topic))
        stream.finish()


def stages(_: Served, client: StoreClient, topic: str) -> None:
    with client.stage_stream() as stream:
        stream.send(block_of([b"a"], topic))
        stream.finish()


def gives_the_option(here: Served, _: StoreClient, topic: str) -> None:
    parse_sink_options({"endpoint": here.endpoint, "topic": topic}, streaming=False)


def puts_by_command(here: Served, _: StoreClient, topic: str) -> None:
    by_command("put", here.endpoint, "--topic", topic)


def creates_by_command(here: Served, _: StoreClient, topic: str) -> None:
    by_command("create-topic", here.endpoint, topic)


def by_command(*words: str) -> None:
    ended = run(*words, input="a\n")
    if ended.returncode:
        raise RmqStoreError(ended.stderr)


WAYS = [
    opens, creates, deletes, puts, stages, gives_the_option, puts_by_command, creates_by_command,
]  # fmt: skip


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path / "store") as found:
        yield found


@pytest.fixture
def client(here: Served) -> Iterator[StoreClient]:
    with StoreClient(here.endpoint, timeout_s=20, retries=0) as found:
        yield found


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_every_way_gives_the_same_answer(here: Served, client: StoreClient, way: Way) -> None:
    for topic in CLIENTS:
        way(here, client, topic)
    for topic in STORES_OWN:
        with pytest.raises(RmqStoreError, match=f"Topic '{topic}' is a system topic"):
            way(here, client, topic)


def test_a_topic_of_a_group_gets_one_queue(here: Served, client: StoreClient) -> None:
    """Those of a broker, whose default for other topics is more."""
    for topic in ("%RETRY%ours", "%DLQ%ours"):
        made = client.open([topic]).topics[topic]
        assert (made.read_queue_nums, made.write_queue_nums, made.perm) == (1, 1, 6)
    assert client.open(["ours"]).topics["ours"].write_queue_nums > 1


def test_a_store_that_makes_no_topics_says_so_too(tmp_path: Path) -> None:
    with (
        served(tmp_path / "store", auto_create_topic_enable=False) as here,
        StoreClient(here.endpoint, timeout_s=20, retries=0) as client,
    ):
        assert client.open(["%RETRY%group"]).topics == {}
        with pytest.raises(RmqStoreError, match="is a system topic"):
            client.open(["TBW102"])
