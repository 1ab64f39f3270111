"""A table of messages, a count over it, and a copy of the paid ones in another store."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

spark = SparkSession.active()
STORE, TOPIC, ENDPOINT = (
    str(spark.conf.get(f"spark.orders.{name}")) for name in ("store", "topic", "endpoint")
)


@dp.table
def orders() -> DataFrame:
    """Each message once: a run continues where the last one ended."""
    return (
        spark.readStream.format("rmqstore")
        .schema("queueId int, queueOffset bigint, tags string, keys array<string>, body string")
        .option("subscribe", TOPIC)
        .option("startingOffsets", "earliest")
        .load(STORE)
    )


@dp.materialized_view
def orders_by_tag() -> DataFrame:
    """How many there are of each kind; computed again by each run."""
    return spark.read.table("orders").groupBy("tags").agg(sf.count("*").alias("messages"))


dp.create_sink("paid", "rmqstore", {"endpoint": ENDPOINT, "topic": "paid_orders"})


@dp.append_flow(target="paid")
def paid_orders() -> DataFrame:
    """Each micro-batch appears once in the other store."""
    return spark.readStream.table("orders").where("tags = 'TagA'").select("keys", "body")
