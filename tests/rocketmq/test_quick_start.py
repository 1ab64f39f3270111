"""The quick start of RocketMQ's documentation, with `rmqstore namesrv` and `rmqstore serve`."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from chispa import assert_df_equality

from rmqstore_spark.client import StoreClient
from tests.namesrv.serving import NamesrvProcess
from tests.rocketmq.processes import Admin, Client, RocketMq
from tests.rocketmq.reading import bodies_of
from tests.support.processes.ports import free_port
from tests.support.processes.serving import StoreProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_COUNT = 1000


def test_the_quick_start_works_and_spark_reads_what_java_has_sent(
    spark: SparkSession, rocketmq: RocketMq, tmp_path: Path
) -> None:
    """Both commands as processes; RocketMQ's mqadmin, producer and push consumer."""
    port = free_port()
    with ExitStack() as running:
        names = running.enter_context(NamesrvProcess(tmp_path)).address
        broker = StoreProcess(
            tmp_path / "store",
            tmp_path,
            *("--clients=all", f"--port={port}", f"--set=namesrvAddr={names}"),
        )
        running.enter_context(broker).ready()
        admin = Admin(rocketmq, names)
        running.callback(admin.close)
        client = running.enter_context(Client(rocketmq, names, f"127.0.0.1:{port}"))

        admin.shows("clusterList", f"127.0.0.1:{port}")
        admin.shows("updateTopic -t orders -c DefaultCluster -r 2 -w 2", "success")
        admin.shows("topicRoute -t orders", '"writeQueueNums":2')
        sent = client.ask("produce", "TopicTest", _COUNT, "hello-")
        assert {each["status"] for each in sent} == {"SEND_OK"}
        _, *got = client.ask("consume", "TopicTest", "quick-start", _COUNT)
        assert Counter(bodies_of(got)) == Counter(b"hello-%d" % n for n in range(_COUNT))
        admin.shows("consumerProgress -g quick-start", "Diff Total: 0")

        with StoreClient(broker.endpoint) as asked:
            asked.flush()
        reader = spark.read.format("rmqstore").option("subscribe", "TopicTest")
        columns = ("body", "keys", "tags", "uniqKey", "queueId", "queueOffset")
        found = reader.load(str(broker.path)).select(*columns)
        told = [
            (
                each["body"].encode(), [each["body"]], "sent",
                each["uniqKey"], each["queueId"], each["queueOffset"],
            )
            for each in sent
        ]  # fmt: skip
        expected = spark.createDataFrame(told, found.schema)
        assert_df_equality(found, expected, ignore_row_order=True)
