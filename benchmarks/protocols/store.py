"""The store process that both protocols call."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.protocols.calls import QUEUES
from benchmarks.spark.beside import traffic_block
from rmqstore_spark.client import StoreClient
from rmqstore_spark.embedding import EmbeddedStore, Setting
from tests.support.processes.ports import free_port
from tests.support.waiting import eventually

__all__ = ["Served", "served"]

_FILLED: Final = 64
"""Blocks that the log holds before anything is measured: 256 MiB."""


class Served(NamedTuple):
    """A store process.

    Attributes:
        endpoint: of Spark.
        address: of its broker.
        client: of the endpoint.
    """

    endpoint: str
    address: str
    client: StoreClient

    def settle(self) -> None:
        """Wait until queues and index have all messages."""
        eventually(lambda: not self.client.stats()["dispatchBehindBytes"])


@contextmanager
def served(place: Path) -> Iterator[Served]:
    """Start a store process with messages in its log, in a new folder, and remove it at the end."""
    place.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="protocols-", dir=place))
    port = free_port()
    settings: dict[str, Setting] = {"clients": "all", "vipListenPort": 0}
    try:
        with (
            EmbeddedStore(folder / "store", port=port, settings=settings) as endpoint,
            StoreClient(endpoint) as client,
        ):
            client.create_topic("orders", write_queue_nums=QUEUES, read_queue_nums=QUEUES)
            block = traffic_block()
            with client.put_stream() as stream:
                for _ in range(_FILLED):
                    stream.send(block)
            yield Served(endpoint, f"127.0.0.1:{port}", client)
    finally:
        shutil.rmtree(folder)
