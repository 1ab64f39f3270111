"""Spark pulls from RocketMQ's own broker, and gets the rows that are in its store."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from chispa import assert_df_equality
from pyspark.sql import functions as F  # noqa: N812 - Spark's habit

from rmqstore_spark.errors import OptionError, RemotingError
from tests.broker.broker import route
from tests.broker.clients.real_client import RealClient, cpp_command, node_command
from tests.datasource.driving import batch_rows
from tests.rocketmq.processes import Admin, Broker, Client, RocketMq
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_PATIENCE = 120.0
TOPIC = "topicC"
"""A topic that the account of a release's `conf/plain_acl.yml` may read, and no more."""
_SOME = '{"topicC":{"0":40,"1":0,"2":5}}'


def test_spark_pulls_what_rocketmqs_broker_has_stored(
    spark: SparkSession,
    rocketmq: RocketMq,
    broker: Callable[..., Broker],
    client: Client,
    name_server: str,
    tmp_path: Path,
) -> None:
    store = tmp_path / "store"
    patient: dict[str, Any] = {"waitTimeMillsInSendQueue": 10_000}  # on a starved machine
    with broker(store, **patient):
        for queue, count in enumerate((300, 120, 120)):
            eventually(lambda q=queue, n=count: _is_sent(client, q, n), _PATIENCE)

        def pulled(**options: Any) -> DataFrame:
            frame = spark.read.format("rmqstore").option("namesrvAddr", name_server)
            return frame.options(subscribe=TOPIC, **options).load()

        rows = pulled().cache()
        assert rows.count() >= 540
        some = pulled(tags="sent", startingOffsets=_SOME).cache()
        assert pulled(tags="other").count() == 0
        time = rows.filter("queueId = 1 and queueOffset = 60").first()
        assert time is not None
        moment = int(time["storeTimestamp"].timestamp() * 1000)
        since = pulled(
            startingTimestamp=moment, startingOffsetsByTimestampStrategy="latest"
        ).cache()
        assert since.count() > 0

        stream = spark.readStream.format("rmqstore").option("namesrvAddr", name_server)
        stream = stream.options(subscribe=TOPIC, startingOffsets="earliest", commitGroup="lake")
        query = (
            stream.option("maxOffsetsPerTrigger", 200)
            .load()
            .writeStream.format("memory")
            .queryName("pulled_stream")
            .trigger(availableNow=True)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .start()
        )
        assert query.awaitTermination(300)
        assert len(query.recentProgress) >= 3
        assert pulled(startingOffsets="group:lake").count() == 0
        with closing(Admin(rocketmq, name_server)) as admin:
            admin.shows("consumerProgress -g lake", "Diff Total: 0")
            admin.shows("consumerProgress", "\nlake")
        try:
            batch_rows("", namesrvAddr=name_server, subscribe=TOPIC, startingOffsets="group:no")
        except OptionError as error:
            assert "unknown consumer group 'no'" in str(error)  # noqa: PT017
        else:
            raise AssertionError("a group that does not exist was accepted")

        def stored(**options: Any) -> DataFrame:
            frame = spark.read.format("rmqstore").option("brokerNames", "broker-a")
            return frame.options(subscribe=TOPIC, **options).load(str(store))

        later = stored().filter(F.col("storeTimestamp") >= F.lit(time["storeTimestamp"]))
        for found, expected in (
            (rows, stored()),
            (some, stored(startingOffsets=_SOME)),
            (since, later),
            (spark.table("pulled_stream"), stored()),
        ):
            assert_df_equality(_plain(found), _plain(expected), ignore_row_order=True)

    if rocketmq.version >= (5, 3):  # has no such accounts; test_spark_accounts.py has its users
        return
    key = tmp_path / "key.yml"
    key.write_text("accessKey: RocketMQ\nsecretKey: 12345678\n")
    key.chmod(0o600)
    with broker(store, aclEnable="true", **patient):
        with pytest.raises(RemotingError, match="No accessKey is configured"):
            batch_rows("", namesrvAddr=name_server, subscribe=TOPIC)
        signed = pulled(aclFile=str(key))
        assert_df_equality(_plain(signed), _plain(stored()), ignore_row_order=True)


@pytest.fixture
def others() -> dict[str, list[str]]:
    """The commands of RocketMQ's other clients, by the topic that each sends to."""
    commands = {"from-cpp": cpp_command(), "from-node": node_command()}
    found = {topic: command for topic, command in commands.items() if command}
    if len(found) < len(commands):
        pytest.skip(f"not all clients are installed: only those of {list(found)}")
    return found


def test_spark_pulls_what_cpp_and_node_have_sent_to_rocketmqs_broker(
    spark: SparkSession,
    others: dict[str, list[str]],
    broker: Callable[..., Broker],
    client: Client,
    name_server: str,
    tmp_path: Path,
) -> None:
    bodies = [f"body-{number}" for number in range(20)]
    with broker(tmp_path / "store", waitTimeMillsInSendQueue=10_000), ExitStack() as running:
        for topic, command in others.items():  # Node's does not create topics
            client.ask("topic", topic, 2, 2, 6)
            eventually(lambda of=topic: route(name_server, of), _PATIENCE)
            other = RealClient(tmp_path, *command, name_server, topic, len(bodies))
            running.callback(other.kill)
            eventually(lambda of=other: of.words("ready"), _PATIENCE)
            assert [body for _, body, *_ in other.words("sent")] == bodies
            assert other.end() == 0
        frame = spark.read.format("rmqstore").option("namesrvAddr", name_server)
        pulled = frame.option("subscribe", ",".join(others)).load()
        found = pulled.select("topic", "body", "keys", "tags")
        sent = [
            (topic, body.encode(), [f"key-{body}"], "TagA") for topic in others for body in bodies
        ]
        # A send that is not answered in time is sent again.
        assert_df_equality(
            found.distinct(), spark.createDataFrame(sent, found.schema), ignore_row_order=True
        )


def _plain(frame: DataFrame) -> DataFrame:
    """Rows that can be sorted and compared: a map cannot."""
    entries = F.array_sort(F.map_entries("properties"))
    return frame.withColumn("properties", entries.cast("string"))


def _is_sent(client: Client, queue: int, count: int) -> bool:
    try:
        client.ask("send", TOPIC, queue, count, f"message-{queue}-", 0)
    except AssertionError as error:
        if "timeout" not in str(error):  # on a starved machine
            raise
        return False
    return True
