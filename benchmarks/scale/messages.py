"""What messages in a store cost: to open it, to plan, to find one of them, to read all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from benchmarks.means.child import in_child
from benchmarks.scale.opened import measure_opened, most_memory
from benchmarks.scale.written import measure_killed, put_seconds
from rmqstore_spark.engine import StoreWriter
from rmqstore_spark.layout.spans import U1
from rmqstore_spark.reader import Store
from tests.support.messages.blocks import encoded
from tests.support.messages.traffic import Traffic

__all__ = ["fill", "measure_messages", "read_memory"]

_TOPIC: Final = "orders"
_QUEUES: Final = 8


def measure_messages(folder: Path, count: int) -> Mapping[str, float]:
    """Make a store with a number of messages, and measure what its users do."""
    store = str(folder / "store")
    found = measure_killed(f"{__name__}:fill", store, count) | measure_opened(store)
    found |= in_child("benchmarks.scale.lookups:find_seconds", store=store, topic=_TOPIC)
    found["a process that reads all"] = in_child(f"{__name__}:read_memory", store=store)
    return found


def fill(store: str, count: int) -> dict[str, float]:
    """Make a store that is not closed; return seconds of a message, of the last tenth of them."""
    writer = StoreWriter.open(store)
    writer.create_topic(_TOPIC, write_queue_nums=_QUEUES, read_queue_nums=_QUEUES)
    last = count // 10
    put_seconds(writer, _blocks(0, count - last))
    writer.flush()
    return {"a message that is appended": put_seconds(writer, _blocks(count - last, last)) / last}


def _blocks(first: int, count: int) -> Iterator[U1]:
    traffic = Traffic(count, topics={_TOPIC: _QUEUES}, first=first)
    return (encoded(batch) for batch in traffic.batches())


def read_memory(store: str) -> float:
    """Bytes of memory that a process takes which reads all messages of a store."""
    with Store.open(store) as opened:
        for queue in opened.queues():
            for _ in opened.read(queue.topic, queue.queue_id):
                pass
    return float(most_memory())
