"""Single puts while a large batch is committed."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Iterator
from typing import Final

from benchmarks.means.stores import Stores
from benchmarks.report.figures import Figure
from benchmarks.spark.sink import served_store
from rmqstore_spark.base.types import CommitRequest, WriterId
from rmqstore_spark.client import StoreClient
from rmqstore_spark.errors import RefusedError
from rmqstore_spark.layout.spans import U1
from tests.support.messages.blocks import encoded_traffic
from tests.support.messages.traffic import Traffic
from tests.support.processes.serving import block_of

__all__ = ["beside_figures", "staged_batch", "traffic_block"]

_SECTION: Final = "Puts of one message beside a commit of 1 GB"
_BYTES: Final = 1 << 30
_BODY: Final = 1024
_ROUNDS: Final = 3
_PAUSE: Final = 0.01  # seconds between two puts
_AIM: Final = 0.05


def beside_figures(stores: Stores) -> Iterator[Figure]:
    """Commit large batches, and put one message after the other meanwhile."""
    for name, topic in (("to another topic", "others"), ("to a queue of the batch", "orders")):
        waits, refused, commits = [], 0, []
        for _ in range(_ROUNDS):
            with served_store(stores.folder) as store:
                seconds, own_waits, own_refused = _round(store.endpoint, topic)
            commits.append(seconds)
            waits.append(max(own_waits, default=0.0))
            refused += own_refused
        longest = max(waits)
        yield Figure(
            _SECTION,
            f"the longest wait of a put {name}",
            f"{longest * 1e3:,.0f} ms",
            "the commit",
            f"{statistics.median(commits) * 1e3:,.0f} ms",
            f"{longest / statistics.median(commits):.2f}",
            f"{_AIM * 1e3:.0f} ms",
            "yes" if longest <= _AIM and not refused else "no",
            note=f"of {_ROUNDS} commits; {refused} puts were refused with OS_PAGECACHE_BUSY",
        )


def _round(endpoint: str, topic: str) -> tuple[float, list[float], int]:
    """Seconds of a commit, seconds of each put beside it, and how many puts were refused."""
    waits: list[float] = []
    refused = 0
    over = threading.Event()

    def put() -> None:
        nonlocal refused
        with StoreClient(endpoint) as client:
            while not over.is_set():
                began = time.perf_counter()
                try:
                    with client.put_stream() as stream:
                        stream.put(block_of([b"beside"], topic))
                except RefusedError:
                    refused += 1
                else:
                    waits.append(time.perf_counter() - began)
                time.sleep(_PAUSE)

    with StoreClient(endpoint) as client:
        request = staged_batch(client)
        client.open([topic])
        putting = threading.Thread(target=put)
        putting.start()
        began = time.perf_counter()
        client.commit(request)
        seconds = time.perf_counter() - began
        over.set()
        putting.join()
    return seconds, waits, refused


def staged_batch(client: StoreClient, topic: str = "orders") -> CommitRequest:
    """Stage 1 GB of messages to a topic; return what commits them."""
    block = traffic_block(topic)
    client.open([topic])
    with client.stage_stream() as stage:
        for _ in range(_BYTES // len(block)):
            stage.send(block)
        info = stage.finish()
    return CommitRequest(WriterId.of_one_write(), (info,))


def traffic_block(topic: str = "orders") -> U1:
    """Return a block of some 4 MiB: messages of 1 KiB to eight queues of a topic."""
    rows = (4 << 20) // (_BODY + 200)
    return encoded_traffic(Traffic(rows, topics={topic: 8}, body_size=_BODY))[0]
