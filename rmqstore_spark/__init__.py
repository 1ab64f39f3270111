"""A RocketMQ message store as a Spark source.

    import rmqstore_spark
    rmqstore_spark.register(spark)
    spark.read.format("rmqstore").load("/data/rocketmq/store")

`rmqstore_spark.reader.Store` reads the same without Spark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from rmqstore_spark.datasource.source import RmqStoreDataSource

__all__ = ["RmqStoreDataSource", "__version__", "register"]

__version__ = "0.1.0"


def register(spark: SparkSession) -> None:
    """Make `format("rmqstore")` known to a session.

    Not needed where the package is installed: Spark finds it through `pyspark_rmqstore`.
    """
    from rmqstore_spark.datasource.source import RmqStoreDataSource

    spark.dataSource.register(RmqStoreDataSource)


def __getattr__(name: str) -> object:
    # The reader works without Spark: only who asks for the data source imports pyspark.
    if name == "RmqStoreDataSource":
        from rmqstore_spark.datasource.source import RmqStoreDataSource

        return RmqStoreDataSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
