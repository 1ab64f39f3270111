"""The client of a store process, for Spark's tasks, the commands and scripts.

    store_client   `StoreClient`: calls a store process
    endpoint_files `EndpointFiles`: the store's files, as `Files` that the reader reads
    transactions   `TransactionProducer`: puts transactional messages, ends and checks them
    streams        `PutStream`, `StageStream`: put blocks, or stage them, many in flight
    connection     calls a process, over connections that it keeps, with time limits and retries
    link           one connection: requests and answers as frames
    contact        how a process is reached: names of hosts, pauses between tries, first contact
    masters        finds the master among the replicas of a store
    patience       how often these are tried
    brokers/       asks name servers and brokers, in RocketMQ's protocol

From outside it imports `wire`, `remoting.codec`, `produce`, `layout.constants`, `base` and
`errors`; `endpoint_files` also `files`, and `brokers/` the rest of `remoting`. It imports neither
the engine nor the reader, so that Spark tasks start fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rmqstore_spark.client.store_client import StoreClient
    from rmqstore_spark.client.streams import PutStream, StageStream
    from rmqstore_spark.client.transactions import TransactionChecker, TransactionProducer

__all__ = [
    "PutStream",
    "StageStream",
    "StoreClient",
    "TransactionChecker",
    "TransactionProducer",
]


_MODULES: Final = {
    "PutStream": "streams",
    "StageStream": "streams",
    "StoreClient": "store_client",
    "TransactionChecker": "transactions",
    "TransactionProducer": "transactions",
}


def __getattr__(name: str) -> object:
    # Late: who only reads, by `endpoint_files`, needs none of them, and `transactions` imports the
    # encoder, which takes longer to load than all else of a client.
    if name in _MODULES:
        module = import_module(f"rmqstore_spark.client.{_MODULES[name]}")
        return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
