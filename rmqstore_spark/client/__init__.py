"""The client of a store process: what Spark's tasks, the commands and scripts use."""

from rmqstore_spark.client.store import StoreClient
from rmqstore_spark.client.streams import PutStream, StageStream

__all__ = ["PutStream", "StageStream", "StoreClient"]
