"""A RocketMQ message store as a Spark source and sink.

    import rmqstore_spark
    rmqstore_spark.register(spark)
    spark.read.format("rmqstore").load("/data/rocketmq/store")

`rmqstore_spark.reader.Store` reads the same without Spark. `rmqstore_spark.embedded(path)` starts a
process to write to, and `rmqstore_spark.engine.StoreWriter` writes without one.

The folders, from the bytes up (`docs/architecture.md`):

    base        what all of them use
    layout      the format: bytes to Arrow and back
    produce     what a producer's client adds to a message
    remoting    RocketMQ's protocol, for both ends
    files       the store directory on any file system
    reader      queues, offsets and messages of a store
    consensus   a member of a DLedger group: elections, and a log that a quorum has
    verify      verification of a store
    engine      the single writer of a store: append, commit, recovery, delays, transactions, expiry
    ha          replication: a store follows a master, or is followed
    broker      a store process as a broker: producers and consumers of RocketMQ
    wire        the protocol between store process and clients
    client      calls a store process, name servers and brokers
    server      the store process: what Spark and the command ask
    namesrv     the name server
    cli         the `rmqstore` command
    datasource  `format("rmqstore")`
    pipelines   ready-made Spark jobs

Modules: `embedding` runs a store process for one program, `errors` has the errors of all folders.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os

    from pyspark.sql import SparkSession

    from rmqstore_spark.datasource.source import RmqStoreDataSource
    from rmqstore_spark.embedding import EmbeddedStore, Setting

__all__ = ["RmqStoreDataSource", "__version__", "embedded", "register"]

__version__ = "0.1.0"


def register(spark: SparkSession) -> None:
    """Make `format("rmqstore")` known to a session.

    Not needed where the package is installed: Spark finds it through `pyspark_rmqstore`.
    """
    source = _data_source()
    from rmqstore_spark.datasource.spark_api import register

    register(spark, source)


def embedded(
    path: str | os.PathLike[str],
    *,
    port: int = 0,
    ready_seconds: float | None = None,
    **settings: Setting,
) -> EmbeddedStore:
    """Start a store process that ends with this program.

        with rmqstore_spark.embedded("/data/store") as endpoint:
            rows.write.format("rmqstore").option("endpoint", endpoint).mode("append").save()

    Args:
        path: the store directory; created if it does not exist.
        port: port on this machine's loopback address; 0 for any free one.
        ready_seconds: how long it may take to come up.
        settings: keys of the store's configuration (docs/configuration.md):
            `embedded(path, flushDiskType="ASYNC_FLUSH")`.

    Returns:
        A context manager that gives the endpoint; outside of `with`, call `start` and `stop`.
    """
    from rmqstore_spark.embedding import READY_SECONDS, EmbeddedStore

    return EmbeddedStore(
        path, port=port, ready_seconds=ready_seconds or READY_SECONDS, settings=settings
    )


def __getattr__(name: str) -> object:
    # The reader works without Spark: only who asks for the data source imports pyspark.
    if name == "RmqStoreDataSource":
        return _data_source()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _data_source() -> type[RmqStoreDataSource]:
    from rmqstore_spark.base.workers import require_spark

    require_spark()
    from rmqstore_spark.datasource.source import RmqStoreDataSource

    return RmqStoreDataSource
