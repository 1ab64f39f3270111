"""Spark sends to RocketMQ's own broker, which stores the rows and gives them to its consumers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from chispa import assert_df_equality
from pyspark.sql import functions as F  # noqa: N812 - Spark's habit

from tests.broker.broker import route
from tests.rocketmq.processes import Broker
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_PATIENCE = 120.0
_ROWS = 20_000


def test_rocketmqs_broker_stores_what_spark_sends(
    spark: SparkSession, broker: Callable[..., Broker], name_server: str, tmp_path: Path
) -> None:
    """Batches to a topic that the broker creates, a stream, and delayed messages."""
    with broker(tmp_path / "store", mappedFileSizeCommitLog=64 << 20):
        eventually(lambda: route(name_server, "TBW102"), _PATIENCE)
        rows = spark.range(_ROWS, numPartitions=3).select(
            F.concat(F.lit("row-"), "id").cast("binary").alias("body"),
            F.when(F.col("id") % 2 == 0, F.array(F.concat(F.lit("key-"), "id"))).alias("keys"),
            F.lit("TagA").alias("tags"),
            F.when(F.col("id") < 20, 1).otherwise(0).alias("delayTimeLevel"),
            F.lit(7).alias("flag"),
        )
        sink = {"namesrvAddr": name_server, "topic": "sent"}
        rows.write.format("rmqstore").options(**sink).mode("append").save()

        def found(topic: str) -> DataFrame:
            reader = spark.read.format("rmqstore").option("namesrvAddr", name_server)
            return reader.option("subscribe", topic).load()

        eventually(lambda: route(name_server, "sent"), _PATIENCE)
        eventually(lambda: found("sent").count() >= _ROWS, _PATIENCE)  # the delayed ones too
        columns = ["body", "keys", "tags", "flag"]
        assert_df_equality(
            found("sent").select(columns),
            rows.select(columns),
            ignore_row_order=True,
            ignore_nullable=True,
        )
        assert found("sent").select("uniqKey").distinct().count() == _ROWS
        assert found("sent").select("queueId").distinct().count() == 4

        stream = spark.readStream.format("rmqstore").option("namesrvAddr", name_server)
        stream = stream.options(subscribe="sent", startingOffsets="earliest")
        query = (
            stream.load()
            .select(columns)
            .writeStream.format("rmqstore")
            .options(**{**sink, "topic": "copied"})
            .trigger(availableNow=True)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .start()
        )
        assert query.awaitTermination(300)
        eventually(lambda: route(name_server, "copied"), _PATIENCE)
        assert_df_equality(
            found("copied").select(columns), found("sent").select(columns), ignore_row_order=True
        )
