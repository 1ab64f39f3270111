"""The client of a store process: what Spark's tasks, the commands and scripts use.

    store        `StoreClient`: a process as its clients see it
    streams      `PutStream`, `StageStream`: what blocks are sent for
    blockstream  blocks on their way, each acknowledged
    connection   one connection: time limits, retries, plain errors
    hangup, sockets    ending connections for certain
    filesystem   the store's files, as a file system of fsspec

It imports neither the engine nor the reader: a Spark task starts with it.
"""

from rmqstore_spark.client.store import StoreClient
from rmqstore_spark.client.streams import PutStream, StageStream

__all__ = ["PutStream", "StageStream", "StoreClient"]
