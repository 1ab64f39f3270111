"""Spark writes to and reads from a cluster of two of RocketMQ's brokers, one of which is killed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chispa import assert_df_equality

from tests.broker.broker import route
from tests.rocketmq.processes import Broker, RocketMq
from tests.support.processes.ports import free_port
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_PATIENCE = 120.0
_ROWS = 8000


def test_both_get_rows_and_the_other_one_takes_all_after_a_kill(
    spark: SparkSession,
    rocketmq: RocketMq,
    broker: Callable[..., Broker],
    name_server: str,
    tmp_path: Path,
) -> None:
    sink = {"namesrvAddr": name_server, "topic": "shared"}

    def write(first: int) -> DataFrame:
        ids = spark.range(first, first + _ROWS, numPartitions=3)
        rows = ids.selectExpr("CAST(concat('row-', id) AS BINARY) AS body")
        rows.write.format("rmqstore").options(**sink).mode("append").save()
        return rows

    def found() -> DataFrame:
        reader = spark.read.format("rmqstore").option("namesrvAddr", name_server)
        return reader.option("subscribe", "shared").load()

    def stream() -> DataFrame:
        """Continue a stream into files; returns what it has read since its first start."""
        reader = spark.readStream.format("rmqstore").option("namesrvAddr", name_server)
        query = (
            reader.options(subscribe="shared", startingOffsets="earliest")
            .load()
            .select("body")
            .writeStream.format("parquet")
            .trigger(availableNow=True)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .start(str(tmp_path / "streamed"))
        )
        assert query.awaitTermination(300)
        return spark.read.parquet(str(tmp_path / "streamed"))

    def brokers(topic: str) -> set[str]:
        told = route(name_server, topic)
        return {data["brokerName"] for data in told["brokerDatas"]} if told else set()

    port, store = free_port(around=(1,)), tmp_path / "b"
    both = {"broker-a", "broker-b"}
    with broker(tmp_path / "a", mappedFileSizeCommitLog=64 << 20):
        other = Broker(
            rocketmq, name_server, port, store,
            brokerName="broker-b", mappedFileSizeCommitLog=64 << 20,
        )  # fmt: skip
        with other:
            eventually(lambda: brokers("TBW102") == both, _PATIENCE)
            rows = write(0)
            eventually(lambda: brokers("shared") == both, _PATIENCE)
            assert_df_equality(
                found().select("body"), rows, ignore_row_order=True, ignore_nullable=True
            )
            assert_df_equality(stream(), rows, ignore_row_order=True, ignore_nullable=True)
            shares = {row["brokerName"]: row["count"] for row in counted(found())}
            assert shares.keys() == both
            assert min(shares.values()) > _ROWS // 10
            other.kill()
            rows = rows.union(write(_ROWS))  # the name server may still name the one that is gone
            eventually(lambda: brokers("shared") == {"broker-a"}, _PATIENCE)
            assert {row["brokerName"] for row in counted(found())} == {"broker-a"}
        again = Broker(
            rocketmq, name_server, port, store,
            brokerName="broker-b", mappedFileSizeCommitLog=64 << 20,
        )  # fmt: skip
        with again:
            eventually(lambda: brokers("shared") == both, _PATIENCE)
            # At least once: a batch whose answer was lost is sent to the other broker, too.
            assert_df_equality(
                found().select("body").distinct(), rows, ignore_row_order=True, ignore_nullable=True
            )
            assert_df_equality(stream(), found().select("body"), ignore_row_order=True)


def counted(frame: DataFrame) -> list[dict[str, Any]]:
    return [row.asDict() for row in frame.groupBy("brokerName").count().collect()]
