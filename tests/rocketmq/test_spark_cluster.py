"""Spark writes to a master of ours; RocketMQ's slave follows it; RocketMQ's consumers get it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from tests.broker.broker import route
from tests.datasource.sink.serving import Served
from tests.ha.peers import log_bytes
from tests.rocketmq.processes import SIZES, Broker, Client, RocketMq
from tests.rocketmq.reading import bodies_of
from tests.support.processes.ports import free_port
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PATIENCE = 120.0
_ROWS = 2000
_FILES = 4


def test_consumers_get_each_row_of_a_stream_once_from_the_master_and_from_its_slave(
    spark: SparkSession,
    rocketmq: RocketMq,
    client: Client,
    name_server: str,
    port: int,
    tmp_path: Path,
) -> None:
    """A group consumes while Spark writes; another one what the slave has when the master died."""
    rows = spark.range(_ROWS, numPartitions=_FILES).selectExpr(
        "'orders' AS topic", "concat('row-', id) AS body", "int(id % 4) AS queueId"
    )
    rows.write.parquet(str(tmp_path / "rows"))
    expected = Counter(bytes(row["body"], "ascii") for row in rows.select("body").collect())
    ours = Served(
        tmp_path / "ours", brokerRole="SYNC_MASTER", slaveTimeout=60_000, brokerName="broker-a",
        clients="all", listenPort=port, namesrvAddr=name_server, **SIZES,
    )  # fmt: skip
    slave = Broker(
        rocketmq, name_server, free_port(around=(1,)), tmp_path / "slave",
        brokerRole="SLAVE", brokerId=1,
        slaveReadEnable=rocketmq.version >= (5,),  # without it, slaves of 5.3 refuse all pulls
    )  # fmt: skip
    try:
        with ours.client() as asked, slave:
            asked.create_topic("orders", read_queue_nums=4)
            eventually(lambda: asked.stats()["slaves"] == 1, _PATIENCE)
            eventually(lambda: _addresses(name_server) == {"0", "1"}, _PATIENCE)
            consuming = client.answers("consume", "orders", "while-it-writes", _ROWS)
            next(consuming)
            stream = spark.readStream.schema(rows.schema).option("maxFilesPerTrigger", 1)
            query = (
                stream.parquet(str(tmp_path / "rows"))
                .writeStream.format("rmqstore")
                .option("endpoint", ours.endpoint)
                .option("checkpointLocation", str(tmp_path / "checkpoint"))
                .trigger(availableNow=True)
                .start()
            )
            assert query.awaitTermination(300)
            assert len(query.recentProgress) >= _FILES
            assert Counter(bodies_of(consuming)) == expected

            end = asked.stats()["commitLogMaxOffset"]
            topics = tmp_path / "slave" / "config" / "topics.json"
            eventually(lambda: '"orders"' in topics.read_text(), _PATIENCE)
            ours.process.kill()
            eventually(lambda: _addresses(name_server) == {"1"}, _PATIENCE)
            _, *left = client.ask("consume", "orders", "after-its-death", _ROWS)
            assert Counter(bodies_of(left)) == expected
            slave.stop()
    finally:
        ours.process.stop()
    assert log_bytes(tmp_path / "slave", 0, end) == log_bytes(tmp_path / "ours", 0, end)


def _addresses(name_server: str) -> set[str]:
    """The broker ids that have the topic."""
    found = route(name_server, "orders")
    return set(found["brokerDatas"][0]["brokerAddrs"]) if found else set()
